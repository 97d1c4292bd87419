"""The read-only questions that a fleet passes on to one of its engines, see `Fleet.query`.

A new question is one class here and the method of `Engine` or `MasterWeights` that answers it;
fleets and worker processes pass on any question. The items of a field called `examples`
are rewritten by the fleets that send other examples to engines (`with_each`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from germline.protocols import Engine, HasMasters, Members
from germline.types import Completion, Example

Query = TypeVar("Query")


@dataclass(frozen=True)
class DimensionQuery:
    """How many numbers are searched."""

    def __call__(self, engine: HasMasters) -> int:
        """Return their number."""
        return engine.weights.dimension

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is a count."""
        return isinstance(answer, int) and answer >= 0


@dataclass(frozen=True)
class ScalesQuery:
    """By how much the sigma of each searched tensor differs from that of its members."""

    def __call__(self, engine: HasMasters) -> Mapping[str, float]:
        """Return the factor of each searched tensor, by name."""
        return engine.weights.scales()

    def is_valid_result(self, answer: object) -> bool:
        """Whether it maps names to numbers."""
        return isinstance(answer, Mapping) and all(
            isinstance(name, str) and isinstance(scale, float) for name, scale in answer.items()
        )


@dataclass(frozen=True)
class LogProbabilitiesQuery:
    """The log-probability, at temperature 1, of each token of completions `[members][examples]`."""

    members: Members
    examples: Sequence[Example]
    completions: Sequence[Sequence[Completion]]

    def __call__(self, engine: Engine) -> list[list[Sequence[float]]]:
        """Return one number per token, `[members][examples][tokens]`."""
        return engine.log_probabilities(self.members, self.examples, self.completions)

    def is_valid_result(self, answer: object) -> bool:
        """Whether there is a number for every token."""
        rows = as_table(answer, len(self.members), len(self.examples))
        return rows is not None and all(
            isinstance(logs, Sequence) and len(logs) == len(completion.tokens)
            for row, completions in zip(rows, self.completions, strict=True)
            for logs, completion in zip(row, completions, strict=True)
        )


def with_each(query: Query, field: str, change: Callable[[Any], Any]) -> Query:
    """Return a query with each item of a field changed; a query without that field as it is."""
    items = getattr(query, field, None)
    if items is None:
        return query
    dataclass_query: Any = query
    changed: Query = replace(dataclass_query, **{field: [change(item) for item in items]})
    return changed


def as_table(answer: object, rows: int, columns: int) -> list[list[object]] | None:
    """Return an answer that is a list of lists of this shape; None where it is anything else."""
    if not isinstance(answer, list) or len(answer) != rows:
        return None
    fits = all(isinstance(row, list) and len(row) == columns for row in answer)
    return answer if fits else None
