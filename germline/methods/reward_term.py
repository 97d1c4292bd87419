"""A term of the reward: what changes rewards between the graders and the fitness."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from germline.fleet import Fleet
from germline.protocols import Members
from germline.types import Evaluation, Example, Grade, MeanUpdate, Rollout, Update


class RewardTerm:
    """Base class of terms; each method does nothing unless a term overrides it.

    Attributes:
        needs_center: whether the center is evaluated on the batch of each generation.
    """

    needs_center: bool = False

    def grade(
        self, fleet: Fleet, members: Members, examples: Sequence[Example], evaluation: Evaluation
    ) -> Evaluation:
        """Change the grades of what the run learns from; held-out scores keep those of the task.

        Args:
            fleet: with the weights that were evaluated.
            members: that were evaluated, a row each; None is the center.
            examples: as the model was prompted with them.
            evaluation: of the members on the examples.
        """
        return evaluation

    def weigh(
        self,
        generation: int,
        batch: Sequence[Example],
        evaluation: Evaluation,
        center: Evaluation | None,
    ) -> tuple[Evaluation, Evaluation | None]:
        """Change the rewards that a generation learns from; held-out scores keep theirs.

        Args:
            generation: whose members were evaluated.
            batch: its examples.
            evaluation: of the members.
            center: evaluation of the center, where `needs_center` asked for it.
        """
        return evaluation, center

    def learn(self, generation: int) -> Mapping[str, Any]:
        """Adapt to the generation that was weighed; return the values to write to the journal."""
        return {}

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> None:
        """Restore what adapts from the updates of a stopped run."""

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return values by their names in generations.jsonl."""
        return {}

    def close(self) -> None:
        """Release what the term loaded."""


def replace_grades(
    evaluation: Evaluation, batch: Sequence[Example], grade_of: Callable[[Rollout], Grade]
) -> Evaluation:
    """Return an evaluation with other grades; the reward of a rollout that is not there is NaN.

    An example that is in the batch twice has the same completions and grades.

    Args:
        evaluation: of members on the batch.
        batch: the examples, in the order of the table.
        grade_of: returns the grade of a rollout.
    """
    rollouts = tuple(replace(one, grade=grade_of(one)) for one in evaluation.rollouts)
    by_place = {(one.member, one.example): one.grade.reward for one in rollouts}
    rewards = [
        [by_place.get((member, example.index), math.nan) for example in batch]
        for member in range(len(evaluation.rewards))
    ]
    return replace(evaluation, rewards=np.array(rewards), rollouts=rollouts)
