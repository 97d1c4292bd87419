"""YAML, overrides and run directories to a Config, with one clear line per mistake."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from germline.config.config_files import TASK_SUFFIXES, find_config, read_file, resolve_file_paths
from germline.config.errors import PlaceOf, format_errors, shortened
from germline.config.overrides import apply_overrides, place_in_files
from germline.config.rules import check_rules
from germline.config.run_config import Config
from germline.types import GermlineError

FORMAT_VERSION = 2
"""Format of the whole run directory; raised if another germline could misread a folder.

A setting that did not exist when a run began gets its default when the run is opened. So a new
setting must have no effect by default, and does not change the format version.
"""


GONE = {
    "fleet": ("devices", "hang_factor", "hang_timeout_s", "min_engines"),
    "record": ("figure_every",),
}
"""Settings that earlier runs recorded, and that changed no bit of them."""


def load_config(
    source: Config | Path | str | Mapping[str, Any], overrides: Sequence[str] = ()
) -> Config:
    """Read a config, apply dotted overrides, and validate.

    Args:
        source: a YAML file or a mapping; the name of a config that comes with germline, such as
            `demo`; a run directory, or the run.json in it, to repeat that run; or a task file
            (.py, .jsonl, .csv, ...), for the defaults of all else. Relative paths in a file are
            relative to the working directory; a file that does not exist there is taken from the
            folder of the config.
        overrides: `setting=value`, or YAML files of settings, each laid over those before it. A
            section of another kind replaces the whole section; a warning names the settings that
            are dropped. A single text is one override.

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
    """Return the settings that a source of a config gives, before they are validated."""
    return _read_source(source)[0]


def _read_source(source: object) -> tuple[dict[str, Any], Config | None]:
    """Return the settings of a source, and their config where it was checked before."""
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
    if values.get("ancestry"):
        raise GermlineError(
            f"{file.parent}: this run was forked, so it starts from weights that its config does "
            f"not name: repeat it with `germline resume {file.parent} --from -1 --out NEW "
            f"seed={recorded.get('seed')}`, or name the config it was made from"
        )
    recorded_config = read_recorded(recorded)
    return recorded_config.model_dump(), recorded_config


def read_task(task: Path | str) -> dict[str, Any] | str:
    """Return the task of a config file as settings; any other task, a name or a file, as it is."""
    is_config = Path(task).suffix in (".yaml", ".yml")
    return load_config(task).task.model_dump() if is_config else str(task)


def validate_config(values: Mapping[str, Any], place_of: PlaceOf = lambda _: "") -> Config:
    """Turn plain values into a Config, with one clear line per mistake."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise GermlineError(f"config: {format_errors(error, values, place_of)}") from None


def read_recorded(values: Mapping[str, Any]) -> Config:
    """Return the config of a run directory, without the settings that are gone."""
    kept = {
        section: {name: one for name, one in value.items() if name not in GONE[section]}
        if section in GONE
        else value
        for section, value in values.items()
    }
    return validate_config(kept)


def check_format_version(file: Path, facts: object) -> None:
    """Refuse the `run.json` of another format, and name the version that can read it."""
    known = facts if isinstance(facts, Mapping) else {}
    version, versions = known.get("format_version"), known.get("versions")
    if version != FORMAT_VERSION:
        writer = versions.get("germline") if isinstance(versions, Mapping) else None
        remedy = f"open the run with the germline that wrote it ({writer}), or " if writer else ""
        raise GermlineError(
            f"{file}: format_version is {version!r}, and this germline reads {FORMAT_VERSION}: "
            f"{remedy}restore the file from a copy"
        )
