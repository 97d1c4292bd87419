"""List the runs in a folder, without writing to it: one summary per run directory.

A folder of several run seeds has one summary too, which holds those of its runs.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from germline.config.loader import MissingPluginError
from germline.record.best_generation import best_score
from germline.record.lock import is_locked
from germline.record.run_directory import RunDirectory
from germline.record.seed_study import SEEDS_FILE, is_seed_study, read_seeds_file, seed_runs
from germline.types import GermlineError, HeldOutScore

State = Literal["running", "stopped", "finished"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary of one run: `done` of `total` generations, and `age_s` since its last file."""

    path: Path
    task: str
    model: str
    done: int
    total: int
    start: HeldOutScore | None
    newest: HeldOutScore | None
    best: HeldOutScore | None
    state: State
    has_ended: bool
    age_s: float

    @property
    def shown_state(self) -> str:
        """The state, or `stopped early` for a run that `held_out.patience` has finished."""
        is_early = self.state == "finished" and self.done < self.total
        return "stopped early" if is_early else self.state


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run directory that cannot be opened, or whose journal lost lines, and why."""

    path: Path
    reason: str
    state: Literal["damaged", "missing plugin"] = "damaged"


@dataclass(frozen=True, slots=True)
class SeedStudySummary:
    """The summary of a folder of several run seeds."""

    path: Path
    seeds: int
    runs: tuple[RunSummary | UnreadableRun, ...]

    @property
    def finished(self) -> int:
        """Number of seeds that are trained."""
        return sum(run.state == "finished" for run in self.runs)

    @property
    def state(self) -> State:
        """Whether a seed is training, all are trained, or the folder can be resumed."""
        if any(run.state == "running" for run in self.runs):
            return "running"
        return "finished" if self.finished == self.seeds else "stopped"

    @property
    def readable(self) -> list[RunSummary]:
        """The summaries of the runs that can be opened."""
        return [run for run in self.runs if isinstance(run, RunSummary)]

    @property
    def age_s(self) -> float:
        """Seconds since a run last wrote a file."""
        return min((run.age_s for run in self.readable), default=0.0)


def run_directories(folder: Path) -> list[Path]:
    """List the run directories in a folder, or the folder itself if it is one; newest first.

    A folder of several run seeds is listed as one directory, unless it is the folder itself.
    """
    if (folder / "run.json").is_file():
        return [folder]
    if not folder.is_dir():
        raise GermlineError(
            f"there is no folder {str(folder)!r}: name one that holds run directories "
            "(germline train makes runs/)"
        )
    directories = [path.parent for path in folder.glob("*/run.json")]
    marked = [path.parent for path in folder.glob(f"*/{SEEDS_FILE}")]
    directories += [path for path in marked if is_seed_study(path)]
    return sorted(directories, key=lambda path: (-_written_at(path), path.name))


def list_runs(folder: Path) -> list[RunSummary | SeedStudySummary | UnreadableRun]:
    """Summarize every run directory in a folder, newest first; unreadable ones hold the error."""
    return [
        _seed_study_summary(path) if is_seed_study(path) else _summary(path)
        for path in run_directories(folder)
    ]


def _seed_study_summary(path: Path) -> SeedStudySummary | UnreadableRun:
    try:
        seeds, _config = read_seeds_file(path)
    except (GermlineError, OSError) as error:
        return UnreadableRun(path, str(error))
    return SeedStudySummary(path, len(seeds), tuple(map(_summary, seed_runs(path))))


def _summary(path: Path) -> RunSummary | UnreadableRun:
    try:
        run = RunDirectory.open(path)
        run.check_journal()
        done = run.journal.last_generation() + 1
        scores = [one.score for one in run.held_out()]
    except MissingPluginError as error:
        return UnreadableRun(path, str(error), "missing plugin")
    except (GermlineError, OSError) as error:
        return UnreadableRun(path, str(error))
    state: State = "finished" if run.has_ended else "stopped"
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
        has_ended=run.has_ended,
        age_s=max(0.0, time.time() - _written_at(path)),
    )


def _written_at(path: Path) -> float:
    """Return the time the journal was last written; before the first generation, run.json.

    For a folder of several run seeds it is that of its newest run.
    """
    if is_seed_study(path):
        return max(map(_written_at, seed_runs(path)), default=(path / SEEDS_FILE).stat().st_mtime)
    for name in ("journal.jsonl", "run.json"):
        try:
            return (path / name).stat().st_mtime
        except FileNotFoundError:
            continue
    return 0.0
