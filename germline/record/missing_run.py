"""What is said of a path that is no run directory."""

from pathlib import Path

from germline.registry import did_you_mean
from germline.types import GermlineError

RUNS_FOLDER = "runs"
"""The folder in which `germline train` makes run directories."""

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


def names_missing_run(source: str) -> bool:
    """Whether a source that may be a run, a model folder or a hub id can only be a missing run.

    A hub id, `owner/name`, looks like a path too. So a path is taken for a missing run if it begins
    with the folder `runs`, or if there are runs beside it.
    """
    path = Path(source)
    if path.exists():
        is_model = any((path / name).exists() for name in ("config.json", "adapter_config.json"))
        return not is_model and any(path.glob("*/run.json"))
    has_folder = len(path.parts) > 1
    return has_folder and (path.parts[0] == RUNS_FOLDER or any(path.parent.glob("*/run.json")))


def _there_are(runs: list[str]) -> str:
    if not runs:
        return ", and there are no runs beside it"
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return f"; there are {', '.join(runs[:MOST_NAMED])}{more}"
