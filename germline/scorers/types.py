"""What a scorer takes and returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from germline.types import Example, GermlineError

Item = tuple[str, Example]
"""A completion's text and the example it answers."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one completion.

    Attributes:
        value: NaN when it is missing.
        missing: why it is missing; None for a score.
        truncated: whether the text was longer than the model reads; None: not known.
    """

    value: float
    missing: str | None = None
    truncated: bool | None = None


class NotScoredError(Exception):
    """A completion or a whole batch cannot be scored; the message is the reason."""


class ScorerClosedError(GermlineError):
    """The scorer was closed while it waited for a service."""


@runtime_checkable
class Scorer(Protocol):
    """Scores batches of completions; threads call it at the same time.

    Attributes:
        batch_size: most completions per call.
        concurrency: most calls at the same time.
        reports_truncation: whether its scores say if the text was truncated.
    """

    batch_size: int
    concurrency: int
    reports_truncation: bool

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Score completions of any members; what cannot be scored is missing.

        Raises:
            NotScoredError: nothing of the batch can be scored.
        """

    def close(self) -> None:
        """End requests that wait, and release the model."""


def sendable(text: str) -> str:
    """Return the text without halves of surrogate pairs, which no tokenizer reads."""
    return text.encode("utf-8", "replace").decode("utf-8")


def missing(reason: str) -> Score:
    """Return a missing score."""
    return Score(math.nan, reason)


def read_number(value: object) -> Score:
    """Read one score of a response; anything but a finite number is missing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return missing(f"the response has {repr(value)[:80]} where a number belongs")
    if not math.isfinite(value):
        return missing(f"the response has {value} where a finite number belongs")
    return Score(float(value))


def read_numbers(values: object, count: int, field: str) -> list[Score]:
    """Read the scores of a batch.

    Raises:
        NotScoredError: the response has another shape.
    """
    if not isinstance(values, list):
        raise NotScoredError(
            f"the response has no list `{field}` with {count} scores, found {repr(values)[:80]}"
        )
    if len(values) != count:
        raise NotScoredError(
            f"the response has {len(values)} scores in `{field}` for {count} completions"
        )
    return [read_number(value) for value in values]
