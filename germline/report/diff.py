"""Differences between two texts, by word, and between configs or a config and the defaults."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from pydantic import BaseModel

from germline.config import Config

WORD = re.compile(r"\w+|\s+|[^\w\s]")
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
    # Without junk detection, which would not match the most frequent words of a long text.
    codes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    kept = [(tag == "equal", one[a:b], other[c:d]) for tag, a, b, c, d in codes]
    return (
        _pieces([(same, old) for same, old, _ in kept if old]),
        _pieces([(same, new) for same, _, new in kept if new]),
    )


def _pieces(runs: Sequence[tuple[bool, Sequence[str]]]) -> list[DiffPiece]:
    """Join words to pieces; a space between two changed pieces counts as changed too."""
    texts = ["".join(run) for _, run in runs]
    changed = [not same for same, _ in runs]
    for place in range(1, len(runs) - 1):
        if texts[place].isspace() and changed[place - 1] and not runs[place + 1][0]:
            changed[place] = True
    joined: list[DiffPiece] = []
    for text, new in zip(texts, changed, strict=True):
        if joined and joined[-1].changed == new:
            text = joined.pop().text + text
        joined.append(DiffPiece(text, new))
    return joined


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults, and always those of `ALWAYS`."""
    found = _changed(config)
    values = config.model_dump(mode="json")
    for name in ALWAYS:
        value = getattr(config, name)
        found.setdefault(
            name, values[name]["kind"] if isinstance(value, BaseModel) else values[name]
        )
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
