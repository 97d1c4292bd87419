"""The runs of a study in one folder: each is trained once, and the same command continues it."""

import json
from pathlib import Path
from typing import Any

from germline.config import Config, CustomTask
from germline.config.file_paths import with_absolute_paths
from germline.record import RunDirectory
from germline.record.best_generation import early_stop
from germline.report.diff import differing_settings
from germline.run import Training, resume, train
from germline.tasks import make_task
from germline.types import GermlineError

TRAINS_ON = ("generations", "held_out.patience", "record.", "graders.", "fleet.")
"""Settings that a run in the folder is trained on with: its scores stay those of the others' kind.

Other settings that `resume` may change, such as `held_out.examples`, would make them another kind.
"""


def as_recorded(config: Config) -> Config:
    """Return a config as its runs record it: absolute paths, and the digest of a custom task."""
    config = with_absolute_paths(config)
    if not isinstance(config.task, CustomTask):
        return config
    digest = getattr(make_task(config.task), "digest", None)
    section = config.task.model_copy(update={"digest": digest})
    return config.model_copy(update={"task": section})


def check_same_config(planned: Config, path: Path) -> None:
    """Check that a run directory holds a run of the planned config, or one that leads to it.

    Raises:
        GermlineError: the config of the run there is another one, or the run is longer.
    """
    if not (path / "run.json").exists():
        return
    differing = _differing(planned, path)
    was, asked = differing.get("generations", (0, 0))
    if was > asked:
        raise GermlineError(
            f"{path} has generations={was}, and asked for are {asked}: ask for generations={was}, "
            "which trains the other runs on, or choose another folder (--out)"
        )
    if asked > was and _stops_early(planned, path):
        raise GermlineError(
            f"held_out.patience={planned.held_out.patience}: the run {path} stops early, so "
            f"generations={asked} would not train it on: set a larger patience, or null"
        )
    others = [name for name in differing if not name.startswith(TRAINS_ON)]
    if others:
        was, asked = differing[others[0]]
        raise GermlineError(
            f"{path} was run with another {others[0]} ({was!r}, not {asked!r}): choose another "
            "folder (--out), or remove that one"
        )


def begin_or_resume(planned: Config, path: Path) -> Training | None:
    """Begin a run, or resume one that is not at the end of the planned config; else None."""
    if not (path / "run.json").exists():
        return train(planned, path)
    done = RunDirectory.open(path).journal.last_generation() + 1
    if done >= planned.generations or _stops_early(planned, path):
        return None
    asked = {name: value for name, (_, value) in _differing(planned, path).items()}
    # Of another kind of fleet, the settings that it does not have go with the old kind.
    kept = {name: value for name, value in asked.items() if value is not ...}
    return resume(path, [f"{name}={json.dumps(value)}" for name, value in kept.items()])


def _differing(planned: Config, path: Path) -> dict[str, list[Any]]:
    """Return the settings of a run that are not as planned, each as it was and as it is asked."""
    differing = differing_settings([RunDirectory.open(path).config, planned])
    if planned.strategy.population is None:
        differing.pop("strategy.population", None)  # The strategy chose the number of members.
    return differing


def _stops_early(planned: Config, path: Path) -> bool:
    """Whether the scores of a run end it early by the patience that is planned."""
    scores = [row.score for row in RunDirectory.open(path).held_out()]
    return early_stop(scores, planned.held_out.patience) is not None
