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
    """Return the error for a path without a run, which names the runs in it or beside it."""
    folder = path if path.is_dir() else path.parent
    runs = sorted(str(file.parent) for file in folder.glob("*/run.json"))
    hint = "" if path.is_dir() else did_you_mean(str(path), runs)
    names = f", such as {', '.join(runs[:MOST_NAMED])}" if runs else ""
    return GermlineError(
        f"{path} is not a run directory: there is no {path / 'run.json'}; name a folder that "
        f"`germline train` printed{names}{hint}"
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
