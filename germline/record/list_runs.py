"""List the runs in a folder: one summary per run directory, without writing to it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from germline.record.best_generation import best_score, early_stop
from germline.record.lock import is_locked
from germline.record.run_directory import RunDirectory
from germline.types import GermlineError, HeldOutScore

SEEDS_FILE, SEED_PREFIX = "seeds.json", "seed-"
"""The file that marks a folder of several run seeds, and how the names of its runs begin."""

State = Literal["running", "stopped", "finished"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary of one run.

    Attributes:
        done: generations in the journal; `total` is the number the config asks for.
        start: held-out score of the base model; `newest` is the latest score of any generation,
            and `best` the best score.
        age_s: seconds since the run last wrote a file.
    """

    path: Path
    task: str
    model: str
    done: int
    total: int
    start: HeldOutScore | None
    newest: HeldOutScore | None
    best: HeldOutScore | None
    state: State
    age_s: float


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A folder with a run.json that cannot be opened, and why."""

    path: Path
    reason: str


def seed_run(folder: Path, seed: int) -> Path:
    """Return the run directory of a run seed in a folder of several."""
    return folder / f"{SEED_PREFIX}{seed}"


def is_seed_study(folder: Path) -> bool:
    """Tell whether a folder holds several run seeds, and is not the directory of one run."""
    return (folder / SEEDS_FILE).exists() and not (folder / "run.json").exists()


def seed_runs(folder: Path) -> list[Path]:
    """Return the run directories in a folder of several run seeds, in the order of the seeds."""
    return sorted(
        (file.parent for file in folder.glob(f"{SEED_PREFIX}*/run.json")),
        key=lambda run: int(run.name.removeprefix(SEED_PREFIX)),
    )


def run_directories(folder: Path) -> list[Path]:
    """List the run directories in a folder, or the folder itself if it is one; newest first.

    Raises:
        GermlineError: there is no such folder.
    """
    if (folder / "run.json").is_file():
        return [folder]
    if not folder.is_dir():
        raise GermlineError(
            f"there is no folder {str(folder)!r}: name one that holds run directories "
            "(germline train makes runs/)"
        )
    directories = [path.parent for path in folder.glob("*/run.json")]
    return sorted(directories, key=lambda path: (-_written_at(path), path.name))


def list_runs(folder: Path) -> list[RunSummary | UnreadableRun]:
    """Summarize every run directory in a folder, newest first; unreadable ones hold the error.

    Raises:
        GermlineError: there is no such folder.
    """
    return [_summary(path) for path in run_directories(folder)]


def _summary(path: Path) -> RunSummary | UnreadableRun:
    try:
        run = RunDirectory.open(path)
        done = run.journal.last_generation() + 1
        scores = [one.score for one in run.held_out()]
    except (GermlineError, OSError) as error:
        return UnreadableRun(path, str(error))
    over = done >= run.config.generations or early_stop(scores, run.config.held_out.patience)
    state: State = "finished" if over else "stopped"
    return RunSummary(
        path=path,
        task=run.config.task.title,
        model=run.config.engine.kind if run.config.engine.has_own_model else run.config.model,
        done=done,
        total=run.config.generations,
        start=scores[0] if scores and scores[0].generation == 0 else None,
        newest=scores[-1] if scores else None,
        best=best_score(scores),
        state="running" if is_locked(path) else state,
        age_s=max(0.0, time.time() - _written_at(path)),
    )


def _written_at(path: Path) -> float:
    """Return the time the journal was last written; before the first generation, run.json."""
    for name in ("journal.jsonl", "run.json"):
        try:
            return (path / name).stat().st_mtime
        except FileNotFoundError:
            continue
    return 0.0
