"""Held-out scores of the center, with intervals over examples.

Several samples per example have pass@k (the share of examples of which one of k samples is right),
best@k where the metric is not a share, and majority@k where a task extracts answers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float64

from germline.evaluation.statistics import (
    Z_95,
    Interval,
    best_of_k,
    bootstrap_interval,
    majority_at_k,
    wilson_interval,
)
from germline.protocols import EpisodeTask, Task, VotableTask
from germline.record.metrics_rows import mean_parts
from germline.types import Decoding, Evaluation, Example, HeldOutScore

HELD_OUT_NOISE = "held out"
"""Noise stream of held-out sampling, which is the same for every score of a run."""

FEWEST_VOTES = 3
"""Of two votes, no majority outvotes the other."""

Answers = Sequence[Sequence[str | None]]
"""The answers that a task extracts, `[samples][examples]`."""


def score_center(
    evaluate: Callable[[Sequence[Example], Decoding], Evaluation],
    task: Task,
    examples: Sequence[Example],
    decoding: Decoding,
    generation: int,
) -> tuple[HeldOutScore, Evaluation]:
    """Score the center on held-out examples, `generation` updates after the start.

    Only examples without the metric are left out: where a scorer fails, the reward is missing, but
    a metric that is another part of the rubric is known. Of several samples per example, the mean
    counts.
    """
    evaluation = evaluate(examples, decoding)
    values = values_by_sample(evaluation, task.metric, examples)
    of = partial(score_of_values, generation, higher_is_better=task.metric_higher_is_better)
    score = of(task.metric, [_mean_of_known(column) for column in values.T])
    reward, parts = _mean_of_known(evaluation.rewards), mean_parts(evaluation.rollouts)
    score = replace(score, reward=reward, parts=parts)
    if len(values) > 1:
        answers = answers_by_sample(evaluation, task, examples)
        reduced = reductions(values, answers, higher_is_better=score.higher_is_better)
        score = replace(score, at_k=tuple(of(name, one.tolist()) for name, one in reduced.items()))
    return score, evaluation


def _mean_of_known(values: np.ndarray) -> float:
    return math.nan if np.isnan(values).all() else float(np.nanmean(values))


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


def confidence_interval(score: HeldOutScore, *, bootstrap: bool = False) -> Interval:
    """Return the 95 % interval of a score over examples; NaN where its error is not known.

    For a share, Wilson's interval; for a mean, 1.96 standard errors to each side, or the BCa
    bootstrap over examples, which is the better one if their values are skewed.
    """
    if score.proportion:
        return wilson_interval(score.mean, score.n)
    if bootstrap:
        return bootstrap_interval([value for value in score.values if math.isfinite(value)])
    half = Z_95 * score.standard_error
    return score.mean - half, score.mean + half


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return mean and standard error; the error of fewer than two values is NaN."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return math.nan, math.nan
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
    return float(array.mean()), error


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
        reduced[f"majority@{count}"] = majority_at_k(values, answers)
    missing = np.isnan(values).any(axis=0)
    return {name: np.where(missing, math.nan, one) for name, one in reduced.items()}
