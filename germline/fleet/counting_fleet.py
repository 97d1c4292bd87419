"""A fleet that counts the texts its engines read and write, for any method and any engine."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from germline.fleet.engine_queries import LogProbabilitiesQuery
from germline.protocols import Answer, EngineQuery, Fleet, GraderProtocol, ScoringGroup
from germline.types import Completion, Decoding, Evaluation, Example, Population


class CountingFleet:
    """Passes every call on to another fleet, and counts what its engines do in `counts`.

    `rollouts` are completions or episodes, `tokens` those that were generated, and `forward_tokens`
    those that a model read or generated. For each text that it writes or scores, a member counts
    the whole prompt, even where an engine reads the beginning of several rows once. An episode
    counts each token of its conversation once, those of the environment too.
    """

    def __init__(self, inner: Fleet) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()

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
        self,
        examples: Sequence[Example],
        decoding: Decoding,
        samples: int = 1,
        graders: GraderProtocol | None = None,
    ) -> Evaluation:
        """Count the rollouts of the center."""
        return self._counted(self.inner.evaluate_center(examples, decoding, samples, graders))

    def score(self, groups: Sequence[ScoringGroup]) -> list[list[Sequence[float]]]:
        """Count the texts that each member of a group reads."""
        for group in groups:
            self.counts["forward_tokens"] += len(group.members) * _length(group.completions)
        return self.inner.score(groups)

    def query(self, query: EngineQuery[Answer]) -> Answer:
        """Count the texts of a query for log-probabilities."""
        if isinstance(query, LogProbabilitiesQuery):
            self.counts["forward_tokens"] += sum(map(_length, query.completions))
        return self.inner.query(query)

    def _counted(self, evaluation: Evaluation) -> Evaluation:
        self.counts["rollouts"] += len(evaluation.rollouts)
        self.counts["tokens"] += evaluation.tokens
        self.counts["forward_tokens"] += _length(one.completion for one in evaluation.rollouts)
        return evaluation


def _length(completions: Iterable[Completion]) -> int:
    return sum(one.length for one in completions)
