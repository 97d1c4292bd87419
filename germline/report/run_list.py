"""List the runs in a folder without writing to it; run seeds of one config are one entry."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from germline.config.loader import MissingPluginError
from germline.record.run_paths import run_directories, written_at
from germline.record.seed_study import is_seed_study, read_seeds_file, seed_runs
from germline.report.run_facts import RunFacts, State
from germline.types import GermlineError


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run directory that cannot be opened, or whose journal lost lines, and why."""

    path: Path
    reason: str
    state: Literal["damaged", "missing plugin"] = "damaged"


@dataclass(frozen=True, slots=True)
class SeedStudySummary:
    """A folder of several run seeds."""

    path: Path
    seeds: int
    runs: tuple[RunFacts | UnreadableRun, ...]

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
    def readable(self) -> list[RunFacts]:
        """The runs that can be opened."""
        return [run for run in self.runs if isinstance(run, RunFacts)]


def list_runs(folder: Path) -> list[RunFacts | SeedStudySummary | UnreadableRun]:
    """Read every run directory in a folder, newest first; unreadable ones hold the error."""
    return [
        _seed_study(path) if is_seed_study(path) else _run(path) for path in run_directories(folder)
    ]


def age_s(path: Path) -> float:
    """Return the seconds since a run, or one of several run seeds, last wrote a file."""
    return max(0.0, time.time() - written_at(path))


def _seed_study(path: Path) -> SeedStudySummary | UnreadableRun:
    try:
        seeds, _config = read_seeds_file(path)
    except (GermlineError, OSError) as error:
        return UnreadableRun(path, str(error))
    return SeedStudySummary(path, len(seeds), tuple(map(_run, seed_runs(path))))


def _run(path: Path) -> RunFacts | UnreadableRun:
    try:
        run = RunFacts(path)
        if run.damage:
            return UnreadableRun(path, run.damage)
        _ = run.held_out  # a damaged file of scores is found here
    except MissingPluginError as error:
        return UnreadableRun(path, str(error), "missing plugin")
    except (GermlineError, OSError) as error:
        return UnreadableRun(path, str(error))
    return run
