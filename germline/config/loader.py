"""YAML and dotted overrides to a Config, with one clear line per mistake."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from germline.config.config_files import TASK_SUFFIXES, find_config, read_file, resolve_file_paths
from germline.config.errors import PlaceOf, format_errors, shortened
from germline.config.overrides import apply_overrides, place_in_files
from germline.config.recorded_run import check_format_version, check_plugins
from germline.config.rules import check_rules
from germline.config.run_config import Config
from germline.config.scorers import smoke_scorers
from germline.types import GermlineError


def load_config(
    source: Config | Path | str | Mapping[str, Any], overrides: Sequence[str] = ()
) -> Config:
    """Read a YAML file or mapping, apply dotted overrides, and validate.

    A run directory, or the run.json in it, gives the config of that run, to repeat the run. A
    `Config` is changed by the overrides.
    A task file (.py, .jsonl, .csv, ...) gives a config with that task and the defaults of all else.
    Relative paths inside a config are relative to the working directory, as in every other command;
    a file that does not exist there is taken from the folder of the config.
    The configs that come with germline go by name as well, such as `demo`.

    An override may also be a YAML file of settings, laid over those before it. A section of another
    kind replaces the whole section; a warning names the settings that are dropped. A single text is
    one override.

    Raises:
        GermlineError: a file is missing or not YAML, or a setting is unknown or out of range.
    """
    values, recorded = _read_source(source)
    overrides = [overrides] if isinstance(overrides, str) else [str(one) for one in overrides]
    is_path = isinstance(source, (str, Path)) and recorded is None
    layers = [*([str(find_config(Path(str(source))))] if is_path else []), *overrides]
    place_of = partial(place_in_files, layers=layers)
    config = validate_config(apply_overrides(values, overrides), place_of)
    check_rules(config, recorded, place_of)
    return config


def read_settings(source: Path | str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a source of a config gives, before they are validated.

    Raises:
        GermlineError: it is no source of settings, or its file is missing or not YAML.
    """
    return _read_source(source)[0]


def _read_source(source: object) -> tuple[dict[str, Any], Config | None]:
    """Return the settings of a source, and the config that they are, where it was checked before.

    Raises:
        GermlineError: it is no source of settings, or its file is missing or not YAML.
    """
    if isinstance(source, Config):
        return source.model_dump(), source
    if isinstance(source, Mapping):
        return dict(source), None
    if not isinstance(source, (str, Path)):
        raise GermlineError(
            "config: give the path of a YAML file, or a mapping of settings such as "
            f"{{'task': 'countdown'}}; found {shortened(source)} ({type(source).__name__})"
        )
    if "=" in str(source) and not Path(source).exists():
        raise GermlineError(
            f"config: {str(source)!r} is a setting; name a config before the settings: a YAML "
            "file, a task file, a run directory, or one of `germline list configs`"
        )
    path = find_config(Path(source))
    if path.suffix in TASK_SUFFIXES and path.suffix != ".json":  # may be a config
        return {"task": str(path)}, None
    file = path / "run.json" if (path / "run.json").is_file() else path
    values = read_file(file)
    recorded = values.get("config")
    if "format_version" not in values or not isinstance(recorded, dict):
        return resolve_file_paths(values, file.parent), None
    check_format_version(file, values)
    _check_fork(file.parent, values)
    check_plugins(file.parent, values.get("plugins", {}))
    return recorded, validate_config(recorded)


def smoke_config(config: Config) -> Config:
    """Shrink a run to two small generations of the nano model, to see in seconds whether it works.

    Task, space, strategy and shaping stay what they are; population, batch and lengths do not.
    Penalties of the text stand in for scorers that need a model or a service.
    """
    for name in ("task", "held_out"):
        section = getattr(config, name)
        section = section.model_copy(update={"scorers": smoke_scorers(section.scorers)})
        config = config.model_copy(update={name: section})
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
    return load_config(config, small)


def read_task(task: Path | str) -> dict[str, Any] | str:
    """Return the task of a config file as settings; any other task, a name or a file, as it is.

    Raises:
        GermlineError: the config cannot be read.
    """
    is_config = Path(task).suffix in (".yaml", ".yml")
    return load_config(task).task.model_dump() if is_config else str(task)


def validate_config(values: Mapping[str, Any], place_of: PlaceOf = lambda _: "") -> Config:
    """Turn plain values into a Config, with one clear line per mistake.

    Raises:
        GermlineError: a setting is unknown, missing or out of range.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise GermlineError(f"config: {format_errors(error, place_of)}") from None


def _check_fork(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse to take the config of a run for the whole of it, where it began with other weights."""
    if facts.get("ancestry"):
        raise GermlineError(
            f"{folder}: this run was forked, so it starts from weights that its config does not "
            f"name: repeat it with `germline resume {folder} --from -1 --out NEW "
            f"seed={facts['config'].get('seed')}`, or name the config it was made from"
        )
