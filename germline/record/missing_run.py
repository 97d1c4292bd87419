"""What is said of a path that is no run directory."""

from pathlib import Path

from germline.registry import did_you_mean
from germline.types import GermlineError


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
        beside = (str(file.parent) for file in path.parent.glob("*/run.json"))
        found = f"no such folder{did_you_mean(str(path), beside)}"
    return GermlineError(
        f"{path} is not a run directory (found {found}); name the folder that `germline train` "
        "printed"
    )
