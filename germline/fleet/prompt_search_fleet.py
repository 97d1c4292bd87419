"""A fleet whose members have prompt variants; the center has the most probable one.

Members with the same variant are evaluated together, in the order in which variants first appear in
the population. So the microbatches depend on the population alone, not on the number of engines.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from germline.fleet.engine_queries import with_each
from germline.prompt_variant import PromptVariant
from germline.protocols import Answer, EngineQuery, Fleet
from germline.protocols.wrappers import FleetWrapper
from germline.types import Decoding, Evaluation, Example, Population, Rollout


class PromptSearchFleet(FleetWrapper):
    """Evaluates every member with its prompt variant.

    Args:
        inner: the fleet that evaluates.
        present: (example, variant) -> the example as the model is prompted with it.
        likeliest: returns the most probable variant now.
    """

    def __init__(
        self,
        inner: Fleet,
        present: Callable[[Example, PromptVariant], Example],
        likeliest: Callable[[], PromptVariant],
    ) -> None:
        super().__init__(inner)
        self._present = present
        self._likeliest = likeliest

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate every member on the batch, those with the same variant together."""
        if not population.prompt_variants:
            return self.inner.evaluate(population, batch, decoding)
        rewards = np.full((len(population), len(batch)), np.nan)
        rollouts: list[Rollout] = []
        parts: list[Evaluation] = []
        for variant in dict.fromkeys(population.prompt_variants):
            places = [
                i
                for i, prompt_variant in enumerate(population.prompt_variants)
                if prompt_variant == variant
            ]
            together = replace(
                population, members=tuple(population.members[i] for i in places), prompt_variants=()
            )
            part = self.inner.evaluate(together, *self._prompted(batch, decoding, variant))
            rewards[places] = part.rewards
            rollouts += [
                replace(rollout, member=places[rollout.member]) for rollout in part.rollouts
            ]
            parts.append(part)
        rollouts.sort(key=lambda rollout: rollout.member)
        return replace(
            parts[0],
            rewards=rewards,
            rollouts=tuple(rollouts),
            tokens=sum(part.tokens for part in parts),
            decode_seconds=sum(part.decode_seconds for part in parts),
        )

    def evaluate_center(
        self, examples: Sequence[Example], decoding: Decoding, samples: int = 1
    ) -> Evaluation:
        """Evaluate the center on the examples with the most probable variant."""
        prompted, variant_decoding = self._prompted(examples, decoding, self._likeliest())
        return self.inner.evaluate_center(prompted, variant_decoding, samples)

    def query(self, query: EngineQuery[Answer]) -> Answer:
        """Ask about the examples of a question with the most probable variant."""
        variant = self._likeliest()
        return self.inner.query(
            with_each(query, "examples", lambda example: self._present(example, variant))
        )

    def _prompted(
        self, examples: Sequence[Example], decoding: Decoding, variant: PromptVariant
    ) -> tuple[list[Example], Decoding]:
        if variant.temperature is not None:
            decoding = replace(decoding, temperature=variant.temperature)
        return [self._present(example, variant) for example in examples], decoding
