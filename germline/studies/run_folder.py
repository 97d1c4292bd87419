"""The runs of a study in one folder: each is trained once, and the same command continues it."""

from pathlib import Path

from germline.config import Config, CustomTask
from germline.config.file_paths import with_absolute_paths
from germline.record import RunDirectory
from germline.report.diff import differing_settings
from germline.run import Training, resume, train
from germline.tasks import make_task
from germline.types import GermlineError


def as_recorded(config: Config) -> Config:
    """Return a config as its runs record it: absolute paths, and the digest of a custom task."""
    config = with_absolute_paths(config)
    if not isinstance(config.task, CustomTask):
        return config
    digest = getattr(make_task(config.task), "digest", None)
    section = config.task.model_copy(update={"digest": digest})
    return config.model_copy(update={"task": section})


def check_same_config(planned: Config, path: Path) -> None:
    """Check that a run directory holds a run of the planned config.

    Raises:
        GermlineError: the config of the run there is not the planned one.
    """
    if not (path / "run.json").exists():
        return
    differing = differing_settings([RunDirectory.open(path).config, planned])
    if planned.strategy.population is None:
        differing.pop("strategy.population", None)  # The strategy chose the number of members.
    if differing:
        # held_out.every follows the generations in a study of dimensions
        name = "generations" if "generations" in differing else next(iter(differing))
        was, asked = differing[name]
        raise GermlineError(
            f"{path} was run with another {name} ({was!r}, not {asked!r}): choose another "
            "folder (--out), or remove that one"
        )


def begin_or_resume(planned: Config, path: Path) -> Training | None:
    """Begin a run, resume one that was interrupted; None for a run that has ended."""
    if not (path / "run.json").exists():
        return train(planned, path)
    return None if RunDirectory.open(path).has_ended else resume(path)
