"""YAML and dotted overrides to a Config, with one clear line per mistake."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from germline.config.config_files import TASK_SUFFIXES, find_config, read_file
from germline.config.errors import format_errors
from germline.config.file_paths import resolve_file_paths
from germline.config.overrides import OverriddenSettings
from germline.config.plugins import check_plugins
from germline.config.run_config import Config
from germline.config.run_format import check_format_version
from germline.config.schedules import CosineSchedule
from germline.config.scorers import smoke_scorers
from germline.types import GermlineError

log = logging.getLogger(__name__)


def load_config(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file or mapping, apply dotted overrides, and validate.

    A run directory, or the run.json in it, gives the config of that run, to repeat the run.
    A task file (.py, .jsonl, .csv, ...) gives a config with that task and the defaults of all else.
    Relative paths inside a config are relative to the working directory, as in every other command;
    a file that does not exist there is taken from the folder of the config.
    The configs that come with germline go by name as well, such as `demo`.

    An override may also be a YAML file of settings, laid over those before it. A section of another
    kind replaces the whole section; a warning names the settings that are dropped.

    Raises:
        GermlineError: a file is missing or not YAML, or a setting is unknown or out of range.
    """
    settings = OverriddenSettings(read_settings(source))
    for override in _texts(overrides):
        settings.apply(override)
    try:
        config = validate_config(settings.values)
    except GermlineError as error:
        # Settings that were dropped may be its cause; the other ones are no news until it is gone.
        text = str(error)
        lines = (text, *settings.dropped_near(text), *_files_of(text, source, overrides))
        raise GermlineError("\n".join(lines)) from None
    for _, note in settings.dropped:
        log.warning("config: %s", note)
    return config


def read_settings(source: Path | str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a source of a config gives, before they are validated.

    Raises:
        GermlineError: it is no source of settings, or its file is missing or not YAML.
    """
    if not isinstance(source, (str, Path, Mapping)):
        raise GermlineError(
            f"config: give the path of a YAML file, or a mapping of settings such as "
            f"{{'task': 'countdown'}}; found {_shown(source)}"
        )
    if isinstance(source, (str, Path)) and "=" in str(source) and not Path(source).exists():
        raise GermlineError(
            f"config: {str(source)!r} is a setting; name a config before the settings: a YAML "
            "file, a task file, a run directory, or one of `germline list configs`"
        )
    return dict(source) if isinstance(source, Mapping) else _read_file(find_config(Path(source)))


def smoke_config(config: Config) -> Config:
    """Shrink a run to two small generations of the nano model, to see in seconds whether it works.

    Task, space, strategy and shaping stay what they are; population, batch and lengths do not.
    Penalties of the text stand in for scorers that need a model or a service.
    """
    values = config.model_dump()
    for section in ("task", "held_out"):
        values[section]["scorers"] = smoke_scorers(getattr(config, section).scorers)
    small = [
        "model=nano",
        "engine=inprocess",
        "generations=2",
        "batch_size=4",
        "held_out.examples=4",
    ]
    small += ["strategy.population=4", "task.max_new_tokens=8", "record.snapshot_every=1"]
    small += config.method.smoke_overrides
    small += config.task.smoke_overrides
    if "GPU" in getattr(config.fleet, "resources", {}):
        small.append("fleet=local")  # The nano model needs no cluster with GPUs.
    if config.model != "nano" and config.space.layers is not None:
        small.append("space.layers=0")  # A layer the nano model has, whatever was asked for.
    if config.model != "nano" and hasattr(config.space, "init_adapter"):
        small.append("space.init_adapter=null")  # An adapter is of one model only.
    for name in ("sigma", "learning_rate"):
        if isinstance(getattr(config.strategy, name, None), CosineSchedule):
            small.append(f"strategy.{name}.warmup=0")
    return load_config(values, small)


def read_task(task: Path | str) -> dict[str, Any] | str:
    """Return the task of a config file as settings; any other task, a name or a file, as it is.

    Raises:
        GermlineError: the config cannot be read.
    """
    is_config = Path(task).suffix in (".yaml", ".yml")
    return load_config(task).task.model_dump() if is_config else str(task)


def validate_config(values: Mapping[str, Any]) -> Config:
    """Turn plain values into a Config, with one clear line per mistake.

    Raises:
        GermlineError: a setting is unknown, missing or out of range.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise GermlineError(f"config: {format_errors(error)}") from None


def _read_file(path: Path) -> dict[str, Any]:
    """Read a config file; of a run, the config it was begun with; of a task file, it alone."""
    if path.suffix in TASK_SUFFIXES and path.suffix != ".json":  # may be a config
        return {"task": str(path)}
    file = path / "run.json" if (path / "run.json").is_file() else path
    values = read_file(file)
    config = values.get("config")
    if "format_version" in values and isinstance(config, dict):
        check_format_version(file, values)
        _check_fork(file.parent, values)
        check_plugins(file.parent, values.get("plugins", {}))
        return config
    return resolve_file_paths(values, file.parent)


def _check_fork(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse to take the config of a run for the whole of it, where it began with other weights."""
    if facts.get("ancestry"):
        raise GermlineError(
            f"{folder}: this run was forked, so it starts from weights that its config does not "
            f"name: repeat it with `germline resume {folder} --from -1 --out NEW "
            f"seed={facts['config'].get('seed')}`, or name the config it was made from"
        )


def _files_of(error: str, source: object, overrides: Sequence[str]) -> list[str]:
    """Name the files that a refused config was read from; nothing where a setting was its cause."""
    files = [override for override in overrides if "=" not in override]
    if not isinstance(source, Mapping):
        files.insert(0, str(source))
    given = [override.partition("=")[0] for override in overrides if "=" in override]
    if not files or any(name in error or f"{_leaf(name)}=" in error for name in given):
        return []
    return [f"        read from {', '.join(files)}"]


def _leaf(name: str) -> str:
    """Return the last part of a setting's name, by which a check over a section names it."""
    return name.rpartition(".")[2]


def _texts(overrides: object) -> list[str]:
    """Return the overrides; refuse anything but a list of texts."""
    if isinstance(overrides, Sequence) and not isinstance(overrides, str):
        texts = [override for override in overrides if isinstance(override, str)]
        if len(texts) == len(overrides):
            return texts
    raise GermlineError(
        "config: overrides are a list of texts such as ['strategy.sigma=0.002', 'seed=3'], "
        f"found {_shown(overrides)}"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
