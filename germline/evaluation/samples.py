"""Several samples per example: their metrics and answers, and what k of them achieve together.

    pass@k        share of examples of which one of k samples is right; coverage at the largest k
    best@k        where the metric is not a share: the expected best of k samples
    majority@k    metric of the answer that most of k samples give, where a task extracts answers

The numbers k are 1, 2, 4 and so on, and the number of samples.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from germline.evaluation.statistics import best_of_k, majority_at_k
from germline.protocols import EpisodeTask, Task, VotableTask
from germline.types import Evaluation, Example

FEWEST_VOTES = 3
"""Of two votes, no majority outvotes the other."""

Answers = Sequence[Sequence[str | None]]
"""The answers that a task extracts, `[samples][examples]`."""


def values_by_sample(
    evaluation: Evaluation, metric: str, examples: Sequence[Example]
) -> Float64[np.ndarray, "samples examples"]:
    """Return the metric of every sample of an evaluation of the center; NaN: missing."""
    values = np.full((len(evaluation.rewards), len(examples)), math.nan)
    places = {example.index: place for place, example in enumerate(examples)}
    for rollout in evaluation.rollouts:
        value = rollout.grade.parts.get(metric, math.nan)
        values[rollout.member, places[rollout.example]] = value
    return values


def answers_by_sample(
    evaluation: Evaluation, task: Task, examples: Sequence[Example]
) -> Answers | None:
    """Return the answer of every sample; None where the task extracts none."""
    if not isinstance(task, VotableTask) or isinstance(task, EpisodeTask):
        return None
    answers: list[list[str | None]] = [[None] * len(examples) for _ in evaluation.rewards]
    places = {example.index: place for place, example in enumerate(examples)}
    for rollout in evaluation.rollouts:
        place = places[rollout.example]
        answer = task.answer_of(rollout.completion.text, examples[place])
        answers[rollout.member][place] = answer
    return answers


def reductions(
    values: Float64[np.ndarray, "samples examples"],
    answers: Answers | None,
    *,
    higher_is_better: bool,
) -> dict[str, Float64[np.ndarray, " examples"]]:
    """Return pass@k or best@k, and majority@k, of each example by name; NaN where one is missing.

    Where lower is better, the best sample is the lowest.
    """
    count, sign = len(values), 1.0 if higher_is_better else -1.0
    known = values[np.isfinite(values)]
    name = "pass" if higher_is_better and np.isin(known, (0.0, 1.0)).all() else "best"
    reduced = {
        f"{name}@{k}": sign * best_of_k(sign * values, k)
        for k in sorted({*(2**power for power in range(count.bit_length())), count})
    }
    if answers is not None and count >= FEWEST_VOTES:
        reduced[f"majority@{count}"] = majority_at_k(values, answers, count)
    missing = np.isnan(values).any(axis=0)
    return {name: np.where(missing, math.nan, one) for name, one in reduced.items()}
