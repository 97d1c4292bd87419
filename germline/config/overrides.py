"""Overrides of settings: `strategy.sigma=0.002`, and YAML files laid over the settings before them.

A section of another kind replaces the whole section; `strategy.kind=cma` keeps the settings that
both kinds have.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from germline.config.config_files import lines_of, read_file, read_value, resolve_file_paths
from germline.config.reference import is_section, kind_of, leaf_types, types_at
from germline.registry import sections
from germline.types import GermlineError

log = logging.getLogger(__name__)


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


@contextmanager
def without_warnings() -> Iterator[None]:
    """Do not warn of the settings that overrides drop."""
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


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
            name = place.removesuffix(".")
            section = sections(group_at(name.split("."))).get(str(value))
            known = section.model_fields if section else merged
            merged = {key: one for key, one in merged.items() if key in known}
            _warn_of_dropped(name, below, merged)
        elif isinstance(old, Mapping):
            new = value if isinstance(value, Mapping) else {"kind": value}
            same = new.get("kind", old.get("kind")) == old.get("kind", new.get("kind"))
            if isinstance(value, Mapping) and (same if levels is None else levels):
                merged[key] = _lay_over(old, new, f"{place}{key}.", levels and levels - 1)
            else:
                _warn_of_dropped(place + key, old, new)
    return merged


def _warn_of_dropped(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Warn of the settings that a section loses; those at their defaults are left out."""
    section = sections(group_at(name.split("."))).get(str(old.get("kind")))
    defaults = section.model_construct().model_dump() if section else {}
    dropped = [
        f"{name}.{key}={value}"
        for key, value in old.items()
        if key not in {"kind", *new} and value != defaults.get(key, ...)
    ]
    if dropped:
        log.warning(
            "config: %s=%s replaces a section, which drops %s",
            *(name, new.get("kind", new), ", ".join(dropped)),
        )


def is_file(override: str) -> bool:
    """Whether an override is a file of settings, and not a setting with a file as its value."""
    path = Path(override)
    return path.suffix in (".yaml", ".yml") and ("=" not in override or path.is_file())


def place_in_files(setting: str, layers: Sequence[str]) -> str:
    """Return `FILE:LINE: ` where the last layer that gives a setting is a file, else nothing."""
    for layer in reversed(layers):
        if is_file(layer):
            lines = lines_of(Path(layer))
            parts = setting.split(".")
            names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
            if line := next((lines[name] for name in names if name in lines), None):
                return f"{layer}:{line}: "
        elif f"{setting}.".startswith(given := f"{layer.partition('=')[0]}.") or given.startswith(
            f"{setting}."
        ):
            return ""
    return ""


def group_at(place: Sequence[str]) -> str:
    """Return the group in the registry of the kinds at a place, such as `task.scorers.NAME`."""
    return "scorer" if "scorers" in place[-2:-1] else place[-1]


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
