"""What is said of a path that is no run directory."""

from pathlib import Path

from germline.record.seed_study import check_single_run
from germline.registry import did_you_mean
from germline.types import GermlineError

RUNS_FOLDER = "runs"
"""The folder in which `germline train` makes run directories."""

SOURCE_FILES = ("run.json", "config.json", "adapter_config.json")
"""What the folder of a run, a model or an adapter has."""

MOST_NAMED = 5


def missing_run_error(path: Path) -> GermlineError:
    """Return the error for a path without a run: what it is, and which runs are near."""
    if path.is_dir():
        runs = sorted(file.parent for file in path.glob("*/run.json"))
        if runs:
            return GermlineError(
                f"{path} is not a run directory but a folder of {len(runs)}: name one, such as "
                f"{runs[0]}; `germline list runs {path}` lists them"
            )
        found = "a folder without run.json"
    elif path.is_file():
        found = "a file"
    else:
        beside = sorted(str(file.parent) for file in path.parent.glob("*/run.json"))
        found = f"no such folder{did_you_mean(str(path), beside)}{_there_are(beside)}"
    return GermlineError(
        f"{path} is not a run directory (found {found}); name the folder that `germline train` "
        "printed"
    )


def check_source(path: Path) -> None:
    """Refuse a folder of several run seeds where one run is needed, and a run that is not there.

    Raises:
        GermlineError: naming the runs that are there.
    """
    check_single_run(path)
    check_no_missing_run(path)


def check_no_missing_run(path: Path) -> None:
    """Refuse a run, model folder or hub id that can only be a run which is not there.

    A hub id, `owner/name`, looks like a path too. So a path is taken for a missing run if it begins
    with the folder `runs`, or if there are runs beside it.

    Raises:
        GermlineError: naming the runs that are there.
    """
    if path.exists():
        is_source = any((path / name).exists() for name in SOURCE_FILES)
        is_missing = not is_source and any(path.glob("*/run.json"))
    else:
        among_runs = path.parts[0] == RUNS_FOLDER or any(path.parent.glob("*/run.json"))
        is_missing = len(path.parts) > 1 and among_runs
    if is_missing:
        raise missing_run_error(path)


def _there_are(runs: list[str]) -> str:
    if not runs:
        return ", and there are no runs beside it"
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return f"; there are {', '.join(runs[:MOST_NAMED])}{more}"
