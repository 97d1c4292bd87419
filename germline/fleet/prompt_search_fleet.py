"""A fleet whose members choose how they are prompted and sampled; the center plays the likeliest.

Members with the same choice are played together, in the order in which choices first appear. So
the microbatches follow from the population alone, whatever the number of engines.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from germline.fleet.engine_queries import with_each
from germline.protocols import Answer, EngineQuery, Fleet
from germline.protocols.wrappers import FleetWrapper
from germline.types import Decoding, Evaluation, Example, Population, PromptVariant, Rollout


class PromptSearchFleet(FleetWrapper):
    """Plays every member with what it chose.

    Args:
        inner: the fleet that plays.
        present: (example, choice) -> the example as it is put to a model.
        likeliest: what the center plays with, now.
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
        """Play the batch with every member, those with the same choice together."""
        if not population.prompt_variants:
            return self.inner.evaluate(population, batch, decoding)
        rewards = np.full((len(population), len(batch)), np.nan)
        rollouts: list[Rollout] = []
        played: list[Evaluation] = []
        for choice in dict.fromkeys(population.prompt_variants):
            places = [i for i, one in enumerate(population.prompt_variants) if one == choice]
            together = replace(
                population, members=tuple(population.members[i] for i in places), prompt_variants=()
            )
            part = self.inner.evaluate(together, *self._as_chosen(batch, decoding, choice))
            rewards[places] = part.rewards
            rollouts += [replace(one, member=places[one.member]) for one in part.rollouts]
            played.append(part)
        rollouts.sort(key=lambda rollout: rollout.member)
        return replace(
            played[0],
            rewards=rewards,
            rollouts=tuple(rollouts),
            tokens=sum(part.tokens for part in played),
            decode_seconds=sum(part.decode_seconds for part in played),
        )

    def evaluate_center(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play the examples with the center, as is likeliest."""
        return self.inner.evaluate_center(*self._as_chosen(examples, decoding, self._likeliest()))

    def query(self, query: EngineQuery[Answer]) -> Answer:
        """Ask about the examples of a question as the center is prompted with them now."""
        choice = self._likeliest()
        return self.inner.query(
            with_each(query, "examples", lambda example: self._present(example, choice))
        )

    def _as_chosen(
        self, examples: Sequence[Example], decoding: Decoding, choice: PromptVariant
    ) -> tuple[list[Example], Decoding]:
        if choice.temperature is not None:
            decoding = replace(decoding, temperature=choice.temperature)
        return [self._present(one, choice) for one in examples], decoding
