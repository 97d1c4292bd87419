"""Folders of runs: of one run, and of several run seeds (`seeds.json`, and `seed-N` for each).

The lock allows one writer per run directory. The operating system releases it when the process ends
in any way.
"""

import fcntl
import json
import os
import time
import weakref
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.record.atomic_files import check_writable, explain_write_errors
from germline.registry import did_you_mean
from germline.types import GermlineError

RUNS_FOLDER = "runs"
"""The folder in which `germline train` makes run directories."""

SOURCE_FILES = ("run.json", "config.json", "adapter_config.json")
"""What the folder of a run, a model or an adapter has."""

SEEDS_FILE, SEED_PREFIX = "seeds.json", "seed-"
"""The file that marks a folder of several run seeds, and how the names of its runs begin."""

LOCK_FILE = ".writer.lock"

LOOKS, PAUSE_S = 5, 0.01
"""How often a lock is tried, as `is_locked` of another process holds it for a moment."""

MOST_NAMED = 5


def choose_directory(config: Config, out: Path | None) -> Path:
    """Return the directory of a new run, which does not exist yet or is empty."""
    path = out if out is not None else _new_path(config)
    check_unused(path)
    return path


def check_unused(path: Path) -> None:
    """Check, before a model is loaded, that a folder can become a run directory."""
    check_writable(path, folder=True)
    # A process that was killed while it created the folder leaves hidden files behind.
    is_used = path.is_dir() and any(not file.name.startswith(".") for file in path.iterdir())
    if is_used:
        remedy = (
            f"continue that run with `germline resume {path}` (from Python: germline.resume, with "
            "the rewards, rows and model that were given), or choose another folder"
            if (path / "run.json").exists()
            else "choose a new or an empty folder"
        )
        raise GermlineError(f"out: {path} exists and is not empty; {remedy} (--out)")


def _new_path(config: Config) -> Path:
    """Name a run by task, space and start; a number follows when two begin in one second."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    name = f"{config.task.title}-{config.space.kind}-{stamp}"
    path, number = Path(RUNS_FOLDER) / name, 1
    while path.exists():
        number += 1
        path = Path(RUNS_FOLDER) / f"{name}-{number}"
    return path


def missing_run_error(path: Path) -> GermlineError:
    """Return the error for a path without a run, which names the runs in it or beside it."""
    folder = path if path.is_dir() else path.parent
    runs = sorted(str(file.parent) for file in folder.glob("*/run.json"))
    hint = "" if path.is_dir() else did_you_mean(str(path), runs)
    names = f", such as {', '.join(runs[:MOST_NAMED])}" if runs else ""
    pages = [one for one in ("sweep.html", "compare.html") if (path / one).exists()]
    names += f"; the report of this folder is {path / pages[0]}" if pages else ""
    return GermlineError(
        f"{path} is not a run directory: there is no {path / 'run.json'}; name a folder that "
        f"`germline train` printed{names}{hint}"
    )


def check_source(path: Path) -> None:
    """Refuse a folder of several run seeds where one run is needed, and a run that is not there."""
    check_single_run(path)
    check_no_missing_run(path)


def check_no_missing_run(path: Path) -> None:
    """Refuse a run, model folder or hub id that can only be a run which is not there.

    A hub id, `owner/name`, looks like a path too. So a path is taken for a missing run if it begins
    with the folder `runs`, or if there are runs beside it.
    """
    if path.exists():
        is_source = any((path / name).exists() for name in SOURCE_FILES)
        is_missing = not is_source and any(path.glob("*/run.json"))
    else:
        among_runs = path.parts[0] == RUNS_FOLDER or any(path.parent.glob("*/run.json"))
        is_missing = len(path.parts) > 1 and among_runs
    if is_missing:
        raise missing_run_error(path)


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
    return sorted(directories, key=lambda path: (-written_at(path), path.name))


def written_at(path: Path) -> float:
    """Return the time the journal was last written; before the first generation, run.json.

    For a folder of several run seeds it is that of its newest run.
    """
    if is_seed_study(path):
        return max(map(written_at, seed_runs(path)), default=(path / SEEDS_FILE).stat().st_mtime)
    for name in ("journal.jsonl", "run.json"):
        try:
            return (path / name).stat().st_mtime
        except FileNotFoundError:
            continue
    return 0.0


def acquire_lock(folder: Path, owner: object) -> "weakref.finalize[..., object]":
    """Lock a folder until `owner` is garbage collected or the returned finalizer is called.

    Raises:
        GermlineError: another training run writes to this folder.
    """
    with explain_write_errors(folder):
        lock = os.open(folder / LOCK_FILE, os.O_WRONLY | os.O_CREAT, 0o644)
    for _ in range(LOOKS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_S)
            continue
        except OSError:
            pass  # some network file systems have no locks; there, a second writer is not detected
        return weakref.finalize(owner, _unlock, lock)
    os.close(lock)
    raise GermlineError(
        f"{folder}: another training writes to this folder: stop it first (Ctrl-C, once); one of "
        "this process has to end, or be dropped"
    )


def is_locked(folder: Path) -> bool:
    """Return whether a training run writes to a folder; False on file systems without locks."""
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _unlock(lock: int) -> None:
    fcntl.flock(lock, fcntl.LOCK_UN)  # also where a forked process has a copy of the descriptor
    os.close(lock)


def is_seed_study(folder: Path) -> bool:
    """Tell whether a folder holds several run seeds, and is not the directory of one run."""
    return (folder / SEEDS_FILE).exists() and not (folder / "run.json").exists()


def folder_to_resume(run: Path) -> Path:
    """Return the folder of all seeds for the run of one of them, else the run directory itself.

    Training one seed on alone would leave the seeds with different numbers of generations.
    """
    parent = run.parent if run.parent.name else run.resolve().parent
    return parent if is_seed_study(parent) else run


def seed_run(folder: Path, seed: int) -> Path:
    """Return the run directory of a run seed in a folder of several."""
    return folder / f"{SEED_PREFIX}{seed}"


def seed_runs(folder: Path) -> list[Path]:
    """Return the run directories that a folder of several run seeds has, in order of the seeds."""
    return sorted(
        (file.parent for file in folder.glob(f"{SEED_PREFIX}*/run.json")),
        key=lambda run: int(run.name.removeprefix(SEED_PREFIX)),
    )


def counted_seeds(ended: Sequence[bool], updates: Sequence[int]) -> list[int]:
    """Return the places of the runs whose scores enter the statistics over their seeds.

    A seed that was stopped early would pull the mean towards the untrained model, so once a run has
    ended, only those that have ended count; before that, all that were scored after training.

    Args:
        ended: of each run, whether its training is over.
        updates: of each run, the updates before its newest score; 0 is the base model.
    """
    trained = [place for place, count in enumerate(updates) if count]
    return [place for place in trained if ended[place]] or trained


def runs_of(path: Path) -> list[Path]:
    """Return the runs that were begun in a folder of several run seeds; any other path alone."""
    if not is_seed_study(path):
        return [path]
    runs = seed_runs(path)
    if not runs:
        raise GermlineError(
            f"{path} holds several run seeds, of which none was begun: train them first "
            f"(germline resume {path})"
        )
    return runs


def read_seeds_file(folder: Path) -> tuple[list[int], dict[str, Any]]:
    """Return the run seeds that a folder of several is to train, and the config as written."""
    file = folder / SEEDS_FILE
    try:
        facts = json.loads(file.read_bytes())
        return [int(seed) for seed in facts["seeds"]], dict(facts["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise GermlineError(f"{file} is damaged ({error}); restore it from a copy") from None


def check_single_run(path: Path) -> None:
    """Refuse a folder of several run seeds where the directory of one run is needed."""
    if is_seed_study(path):
        runs = ", ".join(map(str, runs_of(path)))
        raise GermlineError(
            f"{path} holds several run seeds of one config, and one run is needed here: name one "
            f"of its run directories: {runs}"
        )
