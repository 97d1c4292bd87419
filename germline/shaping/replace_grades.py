"""Other grades for the rollouts of an evaluation, and the table of rewards that they make."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from germline.types import Evaluation, Example, Grade, Rollout


def replace_grades(
    evaluation: Evaluation, batch: Sequence[Example], grade_of: Callable[[Rollout, Example], Grade]
) -> Evaluation:
    """Return an evaluation with other grades; the reward of a rollout that is not there is NaN.

    An example that is in the batch twice has the same completions, and the grades of the last.

    Args:
        evaluation: of members on the batch.
        batch: the examples, in the order of the table.
        grade_of: returns the grade of a rollout of an example.
    """
    examples = {example.index: example for example in batch}
    rollouts = tuple(
        replace(one, grade=grade_of(one, examples[one.example])) for one in evaluation.rollouts
    )
    by_place = {(one.member, one.example): one.grade.reward for one in rollouts}
    rewards = [
        [by_place.get((member, example.index), math.nan) for example in batch]
        for member in range(len(evaluation.rewards))
    ]
    return replace(evaluation, rewards=np.array(rewards), rollouts=rollouts)
