"""Held-out scores of the center, with standard errors and intervals over examples."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from germline.evaluation.held_out_scorers import HeldOutScorers
from germline.protocols import Fleet, Task
from germline.record.metrics_rows import mean_parts
from germline.types import Decoding, Evaluation, Example, HeldOutScore

Z_95 = 1.96
"""Half width of a 95 % interval, in standard errors."""

HELD_OUT_NOISE = "held out"
"""Noise stream of held-out sampling, which is the same for every score of a run."""


def score_center(
    fleet: Fleet,
    task: Task,
    examples: Sequence[Example],
    decoding: Decoding,
    generation: int,
    scorers: HeldOutScorers | None = None,
) -> tuple[HeldOutScore, Evaluation]:
    """Score the center on examples.

    Only examples without the metric are left out: where a scorer fails, the reward is missing, but
    a metric that is another part of the rubric is known.

    Args:
        fleet: evaluates the center.
        task: defines the metric.
        examples: held out.
        decoding: of the completions.
        generation: number of updates before the score.
        scorers: score the same completions, apart from the reward.
    """
    evaluation = fleet.evaluate_center(examples, decoding)
    recorded = {
        rollout.example: rollout.grade.parts.get(task.metric, math.nan)
        for rollout in evaluation.rollouts
    }
    values = [float(recorded.get(example.index, math.nan)) for example in examples]
    score = score_of_values(
        generation, task.metric, values, higher_is_better=task.metric_higher_is_better
    )
    rewards = evaluation.rewards
    reward = math.nan if np.isnan(rewards).all() else float(np.nanmean(rewards))
    score = replace(score, reward=reward, parts=mean_parts(evaluation.rollouts))
    if scorers is not None and (by_scorer := scorers.score(evaluation.rollouts, examples)):
        score = replace(
            score,
            rewards=tuple(float(one) for one in rewards[0]),
            scorers=tuple(
                score_of_values(generation, name, one.values, higher_is_better=one.higher_is_better)
                for name, one in by_scorer.items()
            ),
        )
    return score, evaluation


def score_of_values(
    generation: int, metric: str, values: Sequence[float], *, higher_is_better: bool
) -> HeldOutScore:
    """Return the score that the values of examples make; NaN is missing, the reward the mean."""
    known = [value for value in values if not math.isnan(value)]
    mean, error = mean_and_error(known)
    # A cost whose values happen to be 0 or 1, such as a length difference, is not a share.
    share = bool(known) and higher_is_better and {*known} <= {0.0, 1.0}
    return HeldOutScore(
        generation,
        metric,
        mean,
        error,
        len(known),
        mean,
        proportion=share,
        higher_is_better=higher_is_better,
        values=tuple(values),
    )


def confidence_interval(score: HeldOutScore) -> tuple[float, float]:
    """Return the 95 % interval of a score over examples; NaN where its error is not known.

    For a mean, 1.96 standard errors to each side. For a share p of n examples, Wilson's (1927,
    JASA 22),

        (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    which is between 0 and 1, and has a positive width even if 100 of 100 answers are right.
    """
    p, n, z = score.mean, score.n, Z_95
    if not score.proportion:
        half = z * score.standard_error
        return p - half, p + half
    center = p + z**2 / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    low, high = (center - half) / (1 + z**2 / n), (center + half) / (1 + z**2 / n)
    return min(p, max(0.0, low)), max(p, min(1.0, high))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error; the error of fewer than two values is NaN."""
    if not values:
        return math.nan, math.nan
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
    return float(array.mean()), error
