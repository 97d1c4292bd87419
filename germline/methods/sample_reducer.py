"""The reward of several samples of an example by one member (`method.samples`, `method.fitness`).

    mean        mean of the n rewards
    pass_at_k   the largest of them: for rewards of 0 and 1, pass@k with k = n
    worst_of_k  the smallest of them
    majority    reward of the answer that most samples give, as majority@k of `germline eval`

An example of which a sample has no reward has none. Sample k of an example has the same sampling
noise for every member.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline.config.methods import SampleFitness
from germline.evaluation.statistics import majority_at_k
from germline.rollout import repeat_examples
from germline.types import Evaluation, Example


@dataclass(frozen=True)
class SampleReducer:
    """Repeats examples for the samples, and reduces their rewards; see the module.

    Attributes:
        task: a `VotableTask` for `majority`, whose answers it extracts.
    """

    samples: int = 1
    fitness: SampleFitness = "mean"
    task: Any = None

    def repeated(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return the examples, each as often as it is sampled."""
        return repeat_examples(examples, self.samples)

    def reduced(self, evaluation: Evaluation, examples: Sequence[Example]) -> Evaluation:
        """Return the evaluation of repeated examples with a reward for each example."""
        if self.samples == 1:
            return evaluation
        members = len(evaluation.rewards)
        rewards = evaluation.rewards.reshape(members, len(examples), self.samples)
        if self.fitness == "majority":
            reduced = self._majorities(rewards, evaluation, examples)
        else:
            names = {"mean": "mean", "pass_at_k": "max", "worst_of_k": "min"}
            reduced = getattr(rewards, names[self.fitness])(axis=2)
        known = np.isfinite(rewards).all(axis=2)
        return replace(evaluation, rewards=np.where(known, reduced, np.nan))

    def _majorities(
        self,
        rewards: Float64[np.ndarray, "members examples samples"],
        evaluation: Evaluation,
        examples: Sequence[Example],
    ) -> Float64[np.ndarray, "members examples"]:
        found = np.full(rewards.shape[:2], np.nan)
        texts: dict[int, list[str]] = {}
        for rollout in evaluation.rollouts:  # of a member, or of none of its examples
            texts.setdefault(rollout.member, []).append(rollout.completion.text)
        for member, of_member in texts.items():
            answers = [
                [
                    self.task.answer_of(of_member[place * self.samples + sample], example)
                    for place, example in enumerate(examples)
                ]
                for sample in range(self.samples)
            ]
            found[member] = majority_at_k(rewards[member].T, answers, self.samples)
        return found
