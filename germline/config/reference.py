"""The settings as data, from the JSON schema of `Config`: for listings and the reference."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from germline.config.run_config import Config

Schema = Mapping[str, Any]

BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
REQUIRED, OPEN = "required", "open"
CHOSEN_NAME = "NAME"
"""Stands for a name that the user chooses, as in `task.scorers.NAME.url`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a section."""

    name: str
    choices: tuple[str, ...]
    """The accepted values or kinds, if they can be listed."""
    accepts: str
    """The accepted values, in words."""
    default: str
    """As a config spells it; `REQUIRED`, or `OPEN` if the task, model or machine decides."""
    meaning: str


@dataclass(frozen=True, slots=True)
class ConfigSection:
    """One section of the config, or one kind of a section that has several."""

    places: tuple[str, ...]
    """Settings that hold it, such as `strategy.optimizer`; "" for the config itself."""
    kind: str | None
    meaning: str
    """The first paragraph of its docstring."""
    settings: tuple[Setting, ...]


@cache
def config_sections() -> tuple[ConfigSection, ...]:
    """List all sections: the config itself first, then in the order the settings name them."""
    schema = Config.model_json_schema()
    sections: dict[str, ConfigSection] = {}
    for place, name, section in _walk(schema, schema, "", "Config"):
        known = sections.get(name)
        sections[name] = ConfigSection(
            places=tuple(dict.fromkeys((*known.places, place) if known else (place,))),
            kind=section["properties"].get("kind", {}).get("const"),
            meaning=" ".join(section.get("description", "").split("\n\n")[0].split()),
            settings=tuple(_settings(schema, section)),
        )
    return tuple(sections.values())


def list_kinds(place: str) -> dict[str, str]:
    """Return the kinds of a setting, such as `task`, with one line of meaning each."""
    sections = [part for part in config_sections() if place in part.places]
    return {part.kind: part.meaning for part in sections if part.kind}


@dataclass(frozen=True, slots=True)
class OverrideName:
    """A setting as an override spells it, and the kinds that have it; empty if all kinds do."""

    name: str
    kinds: tuple[str, ...]
    setting: Setting


def override_names(*, with_chosen: bool = False) -> list[OverrideName]:
    """List every setting by name; a name that differs between kinds is listed twice.

    Args:
        with_chosen: whether to list `task.scorers.NAME.url` and the like.
    """
    names: list[OverrideName] = []
    places = dict.fromkeys(place for part in config_sections() for place in part.places)
    for place in [one for one in places if with_chosen or CHOSEN_NAME not in one.split(".")]:
        here = [part for part in config_sections() if place in part.places]
        for setting in dict.fromkeys(setting for part in here for setting in part.settings):
            owners = [part for part in here if setting in part.settings]
            few = () if len(owners) == len(here) else tuple(str(owner.kind) for owner in owners)
            names.append(OverrideName(f"{place}.{setting.name}".lstrip("."), few, setting))
    return sorted(names, key=lambda entry: entry.name)


def _walk(
    schema: Schema, section: Schema, place: str, name: str
) -> Iterator[tuple[str, str, Schema]]:
    yield place, name, section
    for key, value in section["properties"].items():
        # The keys of a mapping to sections are names that the user chooses.
        name_of = f".{CHOSEN_NAME}" if isinstance(value.get("additionalProperties"), dict) else ""
        for inner in _sections(schema, value):
            setting = f"{place}.{key}{name_of}".lstrip(".")
            yield from _walk(schema, schema["$defs"][inner], setting, inner)


def _settings(schema: Schema, section: Schema) -> Iterator[Setting]:
    for name, value in section["properties"].items():
        inner = [schema["$defs"][one]["properties"] for one in _sections(schema, value)]
        kinds = [one["kind"]["const"] for one in inner if "kind" in one]
        if name == "kind" or (inner and not kinds):  # a section of its own, without kinds
            continue
        yield Setting(
            name=name,
            choices=(*kinds, *_words(value)),
            accepts=_accepts(schema, value),
            default=_spelled(value["default"]) if "default" in value else REQUIRED,
            meaning=" ".join(value.get("description", "").split()),
        )


def _spelled(value: Any) -> str:
    """Write a default as a config spells it."""
    if value is None or isinstance(value, bool):
        return OPEN if value is None else str(value).lower()
    return str(value["kind"]) if isinstance(value, dict) and "kind" in value else str(value)


def _sections(schema: Schema, value: Schema) -> Iterator[str]:
    """Yield the names of the sections that a setting accepts."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if "properties" in schema["$defs"][name]:
            yield name
    inner = value.get("additionalProperties")
    mapped = (inner,) if isinstance(inner, dict) else ()
    for one in (*value.get("anyOf", ()), *value.get("oneOf", ()), *mapped):
        yield from _sections(schema, one)


def _words(value: Schema) -> Iterator[str]:
    """Yield the words that a setting accepts."""
    yield from (str(one) for one in value.get("enum", ()))
    if "const" in value:
        yield str(value["const"])
    for one in value.get("anyOf", ()):
        yield from _words(one)


def _accepts(schema: Schema, value: Schema) -> str:
    if "anyOf" in value or "oneOf" in value:
        inner = value.get("anyOf") or value.get("oneOf") or ()
        texts = [_accepts(schema, one) for one in inner if one.get("type") != "null"]
        # If null is the default, the page shows "open"; otherwise null is an accepted value.
        if len(texts) < len(inner) and value.get("default") is not None:
            texts.append("`null`")
        return " or ".join(dict.fromkeys(texts))
    if "$ref" in value:
        section = schema["$defs"][value["$ref"].rpartition("/")[2]]
        return f"`{section['properties']['kind']['const']}`" if "properties" in section else "text"
    if words := list(_words(value)):
        return " or ".join(f"`{word}`" for word in words)
    if value.get("type") == "array":
        return f"list of {_accepts(schema, value.get('items', {}))}"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")  # True if every value is accepted
        return f"{_accepts(schema, inner if isinstance(inner, dict) else {})} by name"
    word = str(value.get("type", "anything"))
    word = {"boolean": "`true` or `false`", "string": value.get("format", "text")}.get(word, word)
    bounds = [f"{sign} {value[key]:g}" for key, sign in BOUNDS.items() if key in value]
    return f"{word} {', '.join(bounds)}".strip()
