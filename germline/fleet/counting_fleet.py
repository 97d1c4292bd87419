"""A fleet that counts the texts its engines read and write, for any method and any engine."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from germline.fleet.engine_queries import LogProbabilitiesQuery
from germline.protocols import Answer, EngineQuery, Fleet, ScoringGroup
from germline.types import Completion, Decoding, Evaluation, Example, Population


@dataclass
class TextCounts:
    """Numbers of texts and tokens.

    Attributes:
        rollouts: completions or episodes that were generated.
        tokens: generated tokens.
        forward_tokens: tokens that a model read or generated: of each rollout the prompt and the
            completion, and of each text that a member scores likewise. Every row counts its whole
            prompt, even where an engine reads the common beginning of several rows once.
    """

    rollouts: int = 0
    tokens: int = 0
    forward_tokens: int = 0

    def take(self) -> dict[str, int]:
        """Return the numbers by name, and begin at 0 again."""
        taken = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in taken:
            setattr(self, name, 0)
        return taken


class CountingFleet:
    """Passes every call on to another fleet, and counts.

    Tokens that an environment adds to an episode are known to the engine alone and not counted.
    """

    def __init__(self, inner: Fleet) -> None:
        self.inner = inner
        self.counts = TextCounts()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what else the fleet has, such as the engine of a local one."""
            return getattr(self.inner, name)

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Count the rollouts of all members."""
        return self._counted(self.inner.evaluate(population, batch, decoding))

    def evaluate_center(
        self, examples: Sequence[Example], decoding: Decoding, samples: int = 1
    ) -> Evaluation:
        """Count the rollouts of the center."""
        return self._counted(self.inner.evaluate_center(examples, decoding, samples))

    def score(self, groups: Sequence[ScoringGroup]) -> list[list[Sequence[float]]]:
        """Count the texts that each member of a group reads."""
        for group in groups:
            self.counts.forward_tokens += len(group.members) * _length(group.completions)
        return self.inner.score(groups)

    def query(self, query: EngineQuery[Answer]) -> Answer:
        """Count the texts of a query for log-probabilities."""
        if isinstance(query, LogProbabilitiesQuery):
            self.counts.forward_tokens += sum(map(_length, query.completions))
        return self.inner.query(query)

    def _counted(self, evaluation: Evaluation) -> Evaluation:
        self.counts.rollouts += len(evaluation.rollouts)
        self.counts.tokens += evaluation.tokens
        self.counts.forward_tokens += _length(one.completion for one in evaluation.rollouts)
        return evaluation


def _length(completions: Iterable[Completion] | Collection[Completion]) -> int:
    return sum(one.prompt_tokens + len(one.tokens) for one in completions)
