"""Differences between two texts, by word, and between configs or a config and the defaults."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from pydantic import BaseModel

from germline.config import Config

WORD = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")
"""A word or a sign, with the white space before it."""

ALWAYS = ("model", "task", "space", "strategy", "generations", "seed")
"""Settings that are shown even if they are the defaults."""


@dataclass(frozen=True, slots=True)
class DiffPiece:
    """A piece of text that is in both of two texts, or only in one (`changed`)."""

    text: str
    changed: bool


def diff_words(before: str, after: str) -> tuple[list[DiffPiece], list[DiffPiece]]:
    """Split two texts into pieces, so that the pieces of only one of them can be marked."""
    one, other = WORD.findall(before), WORD.findall(after)
    # The first word is the same as one after a space; other changes of white space are marked.
    old, new = ([f" {words[0]}", *words[1:]] if words else [] for words in (one, other))
    # Without junk detection, which would not match the most frequent words of a long text.
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return (
        [DiffPiece("".join(one[a:b]), tag != "equal") for tag, a, b, _, _ in codes if b > a],
        [DiffPiece("".join(other[c:d]), tag != "equal") for tag, _, _, c, d in codes if d > c],
    )


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults, and always those of `ALWAYS`."""
    found, values = _changed(config), config.model_dump(mode="json")
    for name in ALWAYS:
        is_section = isinstance(getattr(config, name), BaseModel)
        found.setdefault(name, values[name]["kind"] if is_section else values[name])
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
