"""The settings as data, from the annotations of `Config`: for errors, lists and the reference."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from germline.config.base import KindOf, KindSection, Section
from germline.config.run_config import Config

SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
TYPES = {bool: "`true` or `false`", int: "integer", float: "number", Path: "path", Any: "anything"}
REQUIRED, OPEN = "required", "open"
CHOSEN_NAME = "NAME"
"""Stands for a name that the user chooses, as in `task.scorers.NAME.url`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a section."""

    name: str
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
    places: dict[type[Section], list[str]] = {}
    for place, section in _walk("", Config):
        places.setdefault(section, []).append(place)
    return tuple(
        ConfigSection(
            places=tuple(dict.fromkeys(places[section])),
            kind=kind_of(section),
            meaning=meaning_of(section),
            settings=tuple(settings_of(section)),
        )
        for section in places
    )


def meaning_of(described: object) -> str:
    """Return the first paragraph of a docstring, such as that of a section, as one line."""
    return " ".join((described.__doc__ or "").split("\n\n")[0].split())


@dataclass(frozen=True, slots=True)
class OverrideName:
    """A setting as an override spells it, and the kinds that have it; empty if all kinds do."""

    name: str
    kinds: tuple[str, ...]
    setting: Setting


def override_names() -> list[OverrideName]:
    """List every setting by name; a name that differs between kinds is listed twice."""
    names: list[OverrideName] = []
    places = dict.fromkeys(place for part in config_sections() for place in part.places)
    for place in places:
        here = [part for part in config_sections() if place in part.places]
        for setting in dict.fromkeys(setting for part in here for setting in part.settings):
            owners = [part for part in here if setting in part.settings]
            few = () if len(owners) == len(here) else tuple(str(owner.kind) for owner in owners)
            names.append(OverrideName(f"{place}.{setting.name}".lstrip("."), few, setting))
    return sorted(names, key=lambda entry: entry.name)


def _walk(place: str, section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    yield place, section
    for name, field in section.model_fields.items():
        for leaf in leaf_types(field):
            # The keys of a mapping to sections are names that the user chooses.
            is_map = get_origin(leaf) is dict
            below = f"{place}.{name}.{CHOSEN_NAME}" if is_map else f"{place}.{name}"
            for one in filter(is_section, leaf_types(get_args(leaf)[1]) if is_map else [leaf]):
                yield from _walk(below.lstrip("."), one)


def settings_of(section: type[Section]) -> Iterator[Setting]:
    """Yield the settings of a section; those that are sections of one kind are left out."""
    for name, field in section.model_fields.items():
        if name == "kind" or any(is_section(one) and not kind_of(one) for one in leaf_types(field)):
            continue  # a section of its own, without kinds
        default = field.get_default(call_default_factory=True)
        yield Setting(
            name=name,
            accepts=_accepts(field, takes_null=default is not None and not field.is_required()),
            default=REQUIRED if field.is_required() else _spelled(default),
            meaning=" ".join((field.description or "").split()),
        )


def _spelled(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return OPEN if value is None else str(value).lower()
    return str(value.kind if isinstance(value, KindSection) else to_jsonable_python(value))


def types_at(place: Sequence[str]) -> list[Any]:
    """Return the sections of all kinds, mappings, lists and plain types that a setting accepts."""
    types: list[Any] = [Config]
    for part in filter(None, place):
        sections = [one.model_fields for one in types if is_section(one)]
        inner = [fields[part] for fields in sections if part in fields]
        inner += [get_args(one)[1] for one in types if get_origin(one) is dict]
        types = [leaf for one in inner for leaf in leaf_types(one)]
    return types


def group_at(place: Sequence[str]) -> str:
    """Return the group in the registry of the kinds at a place, such as `task.scorers.NAME`."""
    return "scorer" if "scorers" in place[-2:-1] else place[-1]


def leaf_types(annotation: Any) -> list[Any]:
    """Return the sections of all kinds, mappings, lists and plain types that are accepted."""
    return [leaf for leaf, _ in _leaves(annotation)]


def _leaves(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield the types that a field or an annotation accepts, with the limits of numbers."""
    if isinstance(annotation, FieldInfo):
        annotation, metadata = annotation.annotation, annotation.metadata
    elif get_origin(annotation) is Annotated:
        annotation, *inner = get_args(annotation)
        fields = (one.metadata if isinstance(one, FieldInfo) else [one] for one in inner)
        metadata = [*metadata, *chain.from_iterable(fields)]
    if named := [one.types() for one in metadata if isinstance(one, KindOf)]:
        yield from chain.from_iterable(map(_leaves, named[0]))
    elif get_origin(annotation) in (Union, UnionType):
        yield from chain.from_iterable(_leaves(one, metadata) for one in get_args(annotation))
    else:
        yield annotation, metadata


def is_section(leaf: Any) -> bool:
    """Whether a type is a section."""
    return isinstance(leaf, type) and issubclass(leaf, Section)


def kind_of(section: type[Section]) -> str | None:
    """Return the kind of a section, None where it has none."""
    return getattr(section.model_fields.get("kind"), "default", None)


def _accepts(annotation: Any, *, takes_null: bool = False) -> str:
    """Say what is accepted; where null is the default, the page shows "open" instead of it."""
    texts = {
        None if leaf is NoneType else _in_words(leaf, limits): None
        for leaf, limits in _leaves(annotation)
    }
    null = ["`null`"] if None in texts and takes_null else []
    return " or ".join([*filter(None, texts), *null])


def _in_words(leaf: Any, limits: Sequence[Any]) -> str:
    if get_origin(leaf) is tuple:
        return f"list of {_accepts(get_args(leaf)[0])}"
    if get_origin(leaf) is dict:
        return f"{_accepts(get_args(leaf)[1])} by name"
    if is_section(leaf) or get_origin(leaf) is Literal:
        words = [kind_of(leaf)] if is_section(leaf) else get_args(leaf)
        return " or ".join(f"`{word}`" for word in words)
    given = {key: getattr(one, key) for one in limits for key in SIGNS if hasattr(one, key)}
    shown = ", ".join(f"{sign} {given[key]:g}" for key, sign in SIGNS.items() if key in given)
    return f"{TYPES.get(leaf, 'text')} {shown}".strip()
