"""Short names to objects: `low_rank` -> `germline.spaces.low_rank:LowRank`, imported on first use.

Each group keeps its own table; an installed package can add to one through entry points of the
group `germline.<group>`. A name that is not there gets a suggestion.

Limit: sections of the config list the kinds they know, so a plugin's name can be resolved from
Python, not yet written in a config.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from germline.types import GermlineError


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or an empty string when nothing known is near."""
    written = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), list(written), n=1, cutoff=0.6)
    return f" (did you mean {written[near[0]]!r}?)" if near else ""


def list_names(group: str, table: Mapping[str, str]) -> list[str]:
    """Return every short name of a group, those of installed plugins included, sorted."""
    return sorted({*table, *(entry.name for entry in entry_points(group=f"germline.{group}"))})


def resolve(group: str, table: Mapping[str, str], name: str) -> Any:
    """Import what a short name stands for.

    Raises:
        GermlineError: the name is neither in the table nor an installed plugin.
    """
    if name in table:
        module, _, attribute = table[name].partition(":")
        return getattr(import_module(module), attribute)
    for entry in entry_points(group=f"germline.{group}"):
        if entry.name == name:
            return entry.load()
    known = list_names(group, table)
    raise GermlineError(
        f"{group}: {name!r} is not known{did_you_mean(name, known)}; "
        f"choose one of {', '.join(known)}"
    )
