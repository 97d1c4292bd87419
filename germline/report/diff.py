"""Differences between configs, or between a config and the defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from germline.config import Config

ALWAYS = ("model", "task", "space", "strategy", "generations", "seed")
"""Settings that are shown even if they are the defaults."""


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults, and always those of `ALWAYS`."""
    found, values = _changed(config), config.model_dump(mode="json")
    for name in ALWAYS:
        is_section = isinstance(getattr(config, name), BaseModel)
        found.setdefault(name, values[name]["kind"] if is_section else values[name])
    if not config.method.perturbs and config.strategy.kind == "nes":  # its learning rate alone
        strategy = found.pop("strategy")
        if isinstance(strategy, dict):
            found["strategy"] = {key: value for key, value in strategy.items() if key != "kind"}
    return {name: found[name] for name in (*ALWAYS, *found) if name in found}


def flatten_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name nested settings as overrides do: `strategy.sigma`."""
    found: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=_kind_first):
        if isinstance(value, Mapping) and value:
            found |= flatten_settings(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def differing_settings(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Return the settings that differ between configs; `...` if a config lacks the setting."""
    all_settings = [flatten_settings(config.model_dump(mode="json")) for config in configs]
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    rows = {name: [settings.get(name, ...) for settings in all_settings] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def _changed(section: BaseModel) -> dict[str, Any]:
    """Return the settings of a section that differ from the defaults, together with its kind."""
    dumped = section.model_dump(mode="json")
    found: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        different = value != field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel) and different:
            inside = _changed(value)
            found[name] = inside["kind"] if inside.keys() == {"kind"} else inside
        elif name == "kind" or different:
            found[name] = dumped[name]
    return dict(sorted(found.items(), key=_kind_first))


def _kind_first(item: tuple[str, Any]) -> bool:
    return item[0] != "kind"
