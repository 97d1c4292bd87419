"""YAML, overrides and run directories to a Config, with one clear line per mistake.

Overrides are settings, `strategy.sigma=0.002`, and YAML files laid over the settings before them. A
section of another kind replaces the whole section; `strategy.kind=cma` keeps the settings that both
kinds have.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import reduce
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from germline.config.base import as_override
from germline.config.config_files import (
    TASK_SUFFIXES,
    find_config,
    read_file,
    read_value,
    resolve_file_paths,
)
from germline.config.errors import format_errors
from germline.config.reference import group_at, is_section, kind_of, leaf_types, types_at
from germline.config.rules import check_rules
from germline.config.run_config import Config
from germline.errors import shown
from germline.registry import sections
from germline.types import GermlineError


def apply_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Lay overrides over settings, in order: `setting=value`, or the name of a YAML file."""
    for override in overrides:
        if is_file(override):
            above = resolve_file_paths(read_file(Path(override)), Path(override).parent)
            values = _lay_over(values, above)
            continue
        key, equals, text = override.partition("=")
        path = key.split(".")
        if not equals or not all(path):
            raise GermlineError(
                f"config: override {override!r} must look like strategy.sigma=0.002, or be a "
                ".yaml file of settings"
            )
        value = read_argument(path, text) if text else ""
        for name in reversed(path[1:]):
            value = {name: value}
        values = _lay_over(values, {path[0]: value}, levels=len(path) - 1)
    return dict(values)


def _lay_over(
    below: Mapping[str, Any], above: Mapping[str, Any], place: str = "", levels: int | None = None
) -> dict[str, Any]:
    """Return settings with others laid over them.

    Args:
        below: the settings that are replaced.
        above: the settings that replace them.
        place: name of their section with a dot, empty for the whole config.
        levels: levels of sections that an override names; None: all, while their kinds are equal.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping):
            has_kinds = any(map(is_section, types_at(f"{place}{key}".split("."))))
            old = {"kind": old} if has_kinds else {old: 1.0}  # a reward of weight 1
        merged[key] = value
        if key == "kind" and place and levels == 0:
            section = sections(group_at(place.split(".")[:-1])).get(str(value))
            known = section.model_fields if section else merged
            merged = {key: one for key, one in merged.items() if key in known}
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            same = value.get("kind", old.get("kind")) == old.get("kind", value.get("kind"))
            if same if levels is None else levels:
                merged[key] = _lay_over(old, value, f"{place}{key}.", levels and levels - 1)
    return merged


def is_file(override: str) -> bool:
    """Whether an override is a file of settings, and not a setting with a file as its value."""
    path = Path(override)
    return path.suffix in (".yaml", ".yml") and ("=" not in override or path.is_file())


def read_argument(place: Sequence[str], text: str) -> object:
    """Read the value of a setting from the command line.

    A setting that accepts text takes the argument as it is, unless it accepts a list or a section
    and the argument is written as one, or it may be unset and the argument is `null`. Arguments of
    other settings are YAML.
    """
    types = types_at(place)
    has_lists = any(
        get_origin(one) is tuple and str in leaf_types(get_args(one)[0]) for one in types
    )
    has_kinds = any(is_section(one) and kind_of(one) for one in types)
    has_maps = has_kinds or any(get_origin(one) is dict for one in types)
    takes_text = has_lists or str in types or Path in types or (has_kinds and float not in types)
    is_yaml = (has_lists and text.lstrip()[:1] == "[") or (has_maps and text.lstrip()[:1] == "{")
    if not takes_text or is_yaml:
        return read_value(text)
    if text == "null" and NoneType in types:
        return None
    return int(text) if int in types and text.isdecimal() else text


FORMAT_VERSION = 2
"""Format of the whole run directory; raised if another germline could misread a folder.

A setting that did not exist when a run began gets its default when the run is opened. So a new
setting must have no effect by default, and does not change the format version.
"""

GONE: Mapping[str, object] = {
    **dict.fromkeys(("clip", "init_adapter", "largest", "path", "sample_weight", "test_path")),
    **dict.fromkeys(("noise_reuse", "tensor_parallel", "elite"), 1),
    **dict.fromkeys(("devices", "hang_factor", "hang_timeout_s", "min_engines"), ...),
    "words": None,
    "decay_per": "learning_rate",
    "figure_every": ...,
    "snapshot_gb": ...,
}
"""Settings that earlier runs recorded -> the value that had no effect; `...`: any value."""


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
            section of another kind replaces the whole section. A single text is one override.

    Raises:
        GermlineError: a file is missing or not YAML, or a setting is unknown or out of range.
    """
    values, recorded = _read_source(source)
    if isinstance(overrides, Mapping):
        raise GermlineError(
            f"config: overrides={shown(overrides)} must be a list of texts: "
            f"{[as_override(str(name), value) for name, value in overrides.items()]}"
        )
    overrides = [overrides] if isinstance(overrides, str) else [str(one) for one in overrides]
    config = validate_config(apply_overrides(values, overrides))
    check_rules(config, recorded)
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
    path = find_config(Path(str(source)))
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


def validate_config(values: Mapping[str, Any]) -> Config:
    """Turn plain values into a Config, with one clear line per mistake."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise GermlineError(f"config: {format_errors(error, values)}") from None


def read_recorded(values: Mapping[str, Any]) -> Config:
    """Return the config of a run directory, without the settings that are gone.

    Earlier runs also recorded more grader processes, all of which were never started.
    """
    kept = deepcopy(dict(values))
    try:
        return Config.model_validate(kept)
    except ValidationError as error:
        for mistake in error.errors(include_url=False):
            *place, name = map(str, mistake["loc"])
            is_gone = mistake["type"] == "extra_forbidden" and name in GONE
            if is_gone and GONE[name] in (..., mistake["input"]):
                # A place has the names of kinds as well.
                section = reduce(lambda here, part: here.get(part, here), place, kept)
                section.pop(name, None)
            elif mistake["type"] == "less_than_equal" and mistake["loc"] == ("graders", "workers"):
                kept["graders"]["workers"] = mistake["ctx"]["le"]
    return validate_config(kept)


def check_format_version(file: Path, facts: object) -> None:
    """Refuse the `run.json` of another format."""
    version = facts.get("format_version") if isinstance(facts, Mapping) else None
    if version != FORMAT_VERSION:
        raise GermlineError(
            f"{file}: format_version is {version!r}, and this germline reads {FORMAT_VERSION}: "
            "open the run with the germline that wrote it, or restore the file from a copy"
        )
