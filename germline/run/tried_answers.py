"""The examples that the checks of a task grade answers to."""

from collections.abc import Sequence

from germline.types import Example

QUICK = 4
"""Number of examples that are tried at the start of a run."""


def spread(examples: Sequence[Example], count: int) -> list[Example]:
    """Return `count` examples, evenly spaced over a split."""
    return [examples[place] for place in places(len(examples), count)]


def places(total: int, count: int) -> list[int]:
    """Return `count` different numbers, evenly spaced over `range(total)`."""
    return [place * total // min(count, total) for place in range(min(count, total))]
