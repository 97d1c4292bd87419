"""Held-out scores of the centre, with standard errors over examples."""

import math
from collections.abc import Sequence

import numpy as np

from germline.protocols import Fleet, Task
from germline.types import Decoding, Evaluation, Example, Score

HELD_OUT_NOISE = "held out"
"""Held-out sampling has luck of its own, the same at every score of a run."""


def held_out(
    fleet: Fleet, task: Task, examples: Sequence[Example], decoding: Decoding, generation: int
) -> tuple[Score, Evaluation]:
    """Score the centre on examples; `generation` is the number of updates it has had."""
    evaluation = fleet.evaluate_centre(examples, decoding)
    values = [
        rollout.grade.parts.get(task.metric, math.nan)
        for rollout in evaluation.rollouts
        if not math.isnan(rollout.grade.reward)
    ]
    mean, error = mean_and_error(values)
    reward = float(np.nanmean(evaluation.rewards)) if values else math.nan
    return Score(generation, task.metric, mean, error, len(values), reward), evaluation


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error; the error of fewer than two values is NaN."""
    if not values:
        return math.nan, math.nan
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
    return float(array.mean()), error
