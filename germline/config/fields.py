"""The fields of the config by place, over all kinds: what a setting accepts and what is below it.

A place is the parts of a setting's name, such as `("task", "scorers", "short", "start")`. The
places in the errors of pydantic also hold the names of kinds and types, which `settle` leaves out.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from germline import registry
from germline.config.base import KindOf, KindSection, NumberOrKindOf, Section
from germline.config.config_files import read_value
from germline.config.run_config import Config


def settle(place: Sequence[str | int]) -> tuple[list[str], list[type[Section]]]:
    """Return the parts of a place that name settings, and the sections at their end."""
    parts: list[str] = []
    found: list[Any] = [Config]
    for part in place:
        if below := _below(found, part):
            parts.append(str(part))
            found = below
        else:  # perhaps the name of a kind
            found = [one for one in found if _is_section(one) and _kind(one) == part] or found
    return parts, [one for one in found if _is_section(one)]


def read_argument(place: Sequence[str], text: str) -> object:
    """Read the value of a setting from the command line.

    A setting that accepts text takes the argument as it is, unless it accepts a list or a section
    and the argument is written as one, or it may be unset and the argument is `null`. Arguments of
    other settings are YAML.

    Raises:
        DuplicateKeyError: the value gives a setting twice.
    """
    found: list[Any] = [Config]
    for part in place:
        found = _below(found, part)
    texts = [one for one in found if get_origin(one) is tuple and str in _leaves(get_args(one)[0])]
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, KindSection)]
    plain = {one for one in found if isinstance(one, type)}
    if not (texts or plain & {str, Path} or (kinds and float not in plain)):
        return read_value(text)
    if text == "null" and type(None) in plain:
        return None
    mappings = kinds or [one for one in found if get_origin(one) is dict]
    starts = [start for start, accepted in (("[", texts), ("{", mappings)) if accepted]
    if text.lstrip().startswith(tuple(starts)):
        return read_value(text)
    return int(text) if int in plain and text.isdecimal() else text


def _below(found: Sequence[Any], part: str | int) -> list[Any]:
    """Return what a setting of this name accepts in sections, mappings and lists."""
    annotations = []
    for one in found:
        if _is_section(one):
            field = one.model_fields.get(str(part))
            if field is not None:
                extra = field.metadata
                annotations.append(
                    Annotated[field.annotation, *extra] if extra else field.annotation
                )
        elif get_origin(one) is dict:
            annotations.append(get_args(one)[1])
        elif get_origin(one) is tuple and isinstance(part, int):
            annotations.append(get_args(one)[0])
    return [leaf for annotation in annotations for leaf in _leaves(annotation)]


def _leaves(annotation: Any) -> list[Any]:
    """Return the sections of all kinds, mappings, lists and plain types of an annotation."""
    extra: list[Any] = []
    if get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
    for one in extra:
        if isinstance(one, KindOf):
            number = [float] if isinstance(one, NumberOrKindOf) else []
            return [*number, *registry.sections(one.group).values()]
    return [*_union(annotation)]


def _union(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _leaves(one)
    else:
        yield annotation


def _is_section(leaf: Any) -> bool:
    return isinstance(leaf, type) and issubclass(leaf, Section)


def _kind(section: type[Section]) -> object:
    field = section.model_fields.get("kind")
    return field.default if field else None
