"""The fields of the config by place, over all kinds: what a setting accepts and what is below it.

A place is the parts of a setting's name, such as `("task", "scorers", "short", "start")`. The
places in the errors of pydantic also hold the names of kinds and types, which `settle` leaves out.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from germline import registry
from germline.config.base import KindOf, KindSection, NumberOrKindOf, Section
from germline.config.config_files import read_value
from germline.config.run_config import Config


def group_at(place: Sequence[str]) -> str:
    """Return the group in the registry of the kinds at a place, such as `task.scorers.NAME`."""
    return "scorer" if "scorers" in place[-2:-1] else place[-1]


def settle(place: Sequence[str | int]) -> tuple[list[str], list[type[Section]]]:
    """Return the parts of a place that name settings, and the sections at their end."""
    parts: list[str] = []
    found: list[Any] = [Config]
    for part in place:
        if below := _below(found, part):
            parts.append(str(part))
            found = below
        else:  # perhaps the name of a kind
            kinds = [one for one in _sections(found) if _kind(one) == part]
            found = kinds or found
    return parts, _sections(found)


def read_argument(place: Sequence[str], text: str) -> object:
    """Read the value of a setting from the command line.

    A setting that accepts text takes the argument as it is, unless it accepts a list or a section
    and the argument is written as one, or it may be unset and the argument is `null`. Arguments of
    other settings are YAML.

    Raises:
        GermlineError: the value gives a setting twice.
    """
    found: list[Any] = [Config]
    for part in place:
        found = _below(found, part)
    has_lists = any(get_origin(one) is tuple and str in _leaves(get_args(one)[0]) for one in found)
    has_kinds = any(issubclass(one, KindSection) for one in _sections(found))
    has_maps = has_kinds or any(get_origin(one) is dict for one in found)
    takes_text = has_lists or str in found or Path in found or (has_kinds and float not in found)
    is_yaml = (has_lists and text.lstrip()[:1] == "[") or (has_maps and text.lstrip()[:1] == "{")
    if not takes_text or is_yaml:
        return read_value(text)
    if text == "null" and NoneType in found:
        return None
    return int(text) if int in found and text.isdecimal() else text


def _below(found: Sequence[Any], part: str | int) -> list[Any]:
    """Return what a setting of this name accepts in sections, mappings and lists."""
    annotations: list[Any] = []
    for one in found:
        if isinstance(one, type) and issubclass(one, Section):
            if field := one.model_fields.get(str(part)):
                annotations.append(Annotated[field.annotation, *field.metadata, None])
        elif get_origin(one) is dict:
            annotations.append(get_args(one)[1])
        elif get_origin(one) is tuple and isinstance(part, int):
            annotations.append(get_args(one)[0])
    return [leaf for annotation in annotations for leaf in _leaves(annotation)]


def _leaves(annotation: Any) -> Iterator[Any]:
    """Yield the sections of all kinds, mappings, lists and plain types of an annotation."""
    extra: list[Any] = []
    if get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
    kinds = [one for one in extra if isinstance(one, KindOf)]
    for one in kinds:
        yield from [float] if isinstance(one, NumberOrKindOf) else []
        yield from registry.sections(one.group).values()
    if not kinds and get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _leaves(one)
    elif not kinds:
        yield annotation


def _sections(found: Sequence[Any]) -> list[type[Section]]:
    return [one for one in found if isinstance(one, type) and issubclass(one, Section)]


def _kind(section: type[Section]) -> object:
    field = section.model_fields.get("kind")
    return field.default if field else None
