"""A folder of several run seeds: `seeds.json`, and a run directory `seed-N` for each seed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from germline.types import GermlineError

SEEDS_FILE, SEED_PREFIX = "seeds.json", "seed-"
"""The file that marks a folder of several run seeds, and how the names of its runs begin."""


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
