"""Where a run is written: the directory that was asked for, or a new one under `runs/`."""

from datetime import datetime
from pathlib import Path

from germline.config import Config
from germline.record import RunDirectory
from germline.run.resource_checks import check_disk
from germline.run.validate_args import validate_path


def choose_directory(config: Config, out: Path | str | None) -> Path:
    """Return the directory of a new run, which does not exist yet or is empty.

    Args:
        config: of the run.
        out: the directory that was asked for.

    Raises:
        GermlineError: the directory is not empty, or its disk cannot hold the snapshots.
    """
    path = validate_path("out", out) if out is not None else _new_directory(config)
    RunDirectory.check_unused(path)
    check_disk(config, path)
    return path


def _new_directory(config: Config) -> Path:
    """Name a run by task, space and start; a number follows when two begin in one second."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    name = f"{config.task.title}-{config.space.kind}-{stamp}"
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path
