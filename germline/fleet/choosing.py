"""A fleet whose members choose how they are prompted and sampled; the centre plays the likeliest.

Members with the same choice are played together, in the order in which choices first appear. So
the cells follow from the population alone, whatever the number of engines.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from germline.fleet.outer import OuterFleet
from germline.protocols import Fleet, Members, Texts
from germline.types import Choice, Decoding, Evaluation, Example, Population, Rollout


class ChoosingFleet(OuterFleet):
    """Plays every member with what it chose.

    Args:
        inner: the fleet that plays.
        present: (example, choice) -> the example as it is put to a model.
        likeliest: what the centre plays with, now.
    """

    def __init__(
        self,
        inner: Fleet,
        present: Callable[[Example, Choice], Example],
        likeliest: Callable[[], Choice],
    ) -> None:
        super().__init__(inner)
        self._present = present
        self._likeliest = likeliest

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Play the batch with every member, those with the same choice together."""
        if not population.choices:
            return self.inner.evaluate(population, batch, decoding)
        rewards = np.full((len(population), len(batch)), np.nan)
        rollouts: list[Rollout] = []
        played: list[Evaluation] = []
        for choice in dict.fromkeys(population.choices):
            places = [i for i, one in enumerate(population.choices) if one == choice]
            together = replace(
                population, members=tuple(population.members[i] for i in places), choices=()
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
            generation_s=sum(part.generation_s for part in played),
        )

    def evaluate_centre(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play the examples with the centre, as is likeliest."""
        return self.inner.evaluate_centre(*self._as_chosen(examples, decoding, self._likeliest()))

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Let members read completions after the prompts that the center answers now."""
        choice = self._likeliest()
        asked = [self._present(one, choice) for one in examples]
        return self.inner.log_probabilities(members, asked, completions)

    def _as_chosen(
        self, examples: Sequence[Example], decoding: Decoding, choice: Choice
    ) -> tuple[list[Example], Decoding]:
        if choice.temperature is not None:
            decoding = replace(decoding, temperature=choice.temperature)
        return [self._present(one, choice) for one in examples], decoding
