"""The settings as data, from their JSON schema: for listings, completion and the reference.

All data comes from the JSON schema that pydantic makes of `Config`, so it contains every new
setting and kind.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from germline.config.run_config import Config

Schema = Mapping[str, Any]

BOUNDS = {
    "exclusiveMinimum": ">",
    "minimum": "≥",
    "exclusiveMaximum": "<",
    "maximum": "≤",
}
REQUIRED, OPEN = "required", "open"
CHOSEN_NAME = "NAME"
"""Stands for a name that the user chooses, as in `task.scorers.NAME.url`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a section.

    Attributes:
        choices: the accepted values or kinds, if they can be listed.
        accepts: the accepted values, in words.
        default: the default as a config spells it; `REQUIRED` if there is none, `OPEN` if the
            task, model or machine decides.
    """

    name: str
    choices: tuple[str, ...]
    accepts: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ConfigSection:
    """One section of the config, or one kind of a section that has several.

    Attributes:
        places: settings that hold it, such as `strategy.optimizer`; "" for the config itself.
        kind: its short name; None if the section has no kinds.
        meaning: the first paragraph of its docstring.
    """

    places: tuple[str, ...]
    kind: str | None
    meaning: str
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
        with_chosen: whether to list settings below a name that the user chooses, such as
            `task.scorers.NAME.url`.
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
        inner = [schema["$defs"][one] for one in _sections(schema, value)]
        if inner and not any("kind" in one["properties"] for one in inner):
            continue  # a section of its own, without kinds
        if name == "kind":
            continue
        kinds = [one["properties"]["kind"]["const"] for one in inner if "kind" in one["properties"]]
        yield Setting(
            name=name,
            choices=(*kinds, *_words(value)),
            accepts=_accepts(schema, value),
            default=_spelled(value["default"]) if "default" in value else REQUIRED,
            meaning=" ".join(value.get("description", "").split()),
        )


def _spelled(value: Any) -> str:
    """Write a default as a config spells it."""
    if value is None:
        return OPEN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return str(value["kind"]) if "kind" in value else str(value)
    if isinstance(value, list):
        return f"[{', '.join(repr(one) if isinstance(one, str) else str(one) for one in value)}]"
    return str(value)


def _sections(schema: Schema, value: Schema) -> Iterator[str]:
    """Yield the names of the sections that a setting accepts."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if "properties" in schema["$defs"][name]:
            yield name
    inner = value.get("additionalProperties")
    mapped = (inner,) if isinstance(inner, dict) else ()
    unions = (value.get(key, ()) for key in ("anyOf", "oneOf", "allOf"))
    for one in (*chain.from_iterable(unions), *mapped):
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
    type_name = str(value.get("type", "anything"))
    words_for = {"boolean": "`true` or `false`", "string": str(value.get("format", "text"))}
    word = words_for.get(type_name, type_name)
    bounds = [f"{sign} {value[key]:g}" for key, sign in BOUNDS.items() if key in value]
    return " ".join([word, ", ".join(bounds)]).strip()
