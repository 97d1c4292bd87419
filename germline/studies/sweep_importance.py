"""Which settings of a sweep decide whether a trial is among the best.

PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255, as Optuna has it) compares where the best trials
lie with where all of them lie. With few trials its numbers are noisy: each has a bootstrap interval
over trials, and a setting counts only if it is more important than in nearly all sweeps whose
scores are shuffled.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline.studies.sweep_samplers import suggest
from germline.studies.sweep_space import Dimension, SweepSpace

FEWEST_TRIALS, FEWEST_BEST = 10, 5
"""Trials without which nothing is computed; least number of trials that count as the best."""

BEST, RESAMPLES = 0.1, 100
"""Share of the trials that count as the best; number of resamples, and of shuffles."""

Point = tuple[Mapping[str, Any], float]
"""Settings of a trial, and its score so that higher is better."""


@dataclass(frozen=True)
class Importance:
    """The share of a setting in the importance of all, with its 95 % interval over trials.

    Attributes:
        matters: whether it is above 95 % of the importances that shuffled scores give.
    """

    name: str
    share: float
    low: float
    high: float
    matters: bool


def importances(space: SweepSpace, points: Sequence[Point]) -> list[Importance]:
    """Return the importance of every setting, the largest first; empty with few trials."""
    if len(points) < FEWEST_TRIALS or len({score for _, score in points}) < 2:
        return []
    rng, count = np.random.default_rng(0), len(points)
    settings, scores = zip(*points, strict=True)
    drawn = [
        _divergences(space, [points[n] for n in rng.integers(count, size=count)])
        for _ in range(RESAMPLES)
    ]
    shuffled = [
        _divergences(space, [*zip(settings, rng.permutation(scores).tolist(), strict=True)])
        for _ in range(RESAMPLES)
    ]
    found = _divergences(space, points)
    matters = found > np.percentile(shuffled, 95, axis=0)
    low, high = np.percentile([one / (one.sum() or 1.0) for one in drawn], [2.5, 97.5], axis=0)
    numbers = np.transpose([found / (found.sum() or 1.0), low, high]).tolist()
    columns = zip(space.dimensions, numbers, matters.tolist(), strict=True)
    made = [
        Importance(one.name, share, least, most, is_above)
        for one, (share, least, most), is_above in columns
    ]
    return sorted(made, key=lambda one: -one.share)


def _divergences(space: SweepSpace, points: Sequence[Point]) -> Float64[np.ndarray, " settings"]:
    """Return Optuna's importances in the order of the space, which do not sum to 1."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is experimental in Optuna
        study = optuna.create_study(direction="maximize")
        study.add_trials([_trial(optuna, space, *point) for point in points])
        best = max(BEST, FEWEST_BEST / len(points))
        evaluator = PedAnovaImportanceEvaluator(target_quantile=best)
        found = get_param_importances(study, evaluator=evaluator, normalize=False)
    optuna.logging.set_verbosity(verbosity)
    return np.array([found.get(one.name, 0.0) for one in space.dimensions])


def _trial(optuna: Any, space: SweepSpace, settings: Mapping[str, Any], score: float) -> Any:
    given = [one for one in space.dimensions if one.name in settings]
    fixed = optuna.trial.FixedTrial({one.name: _value(one, settings[one.name]) for one in given})
    for one in given:
        suggest(fixed, one)  # the trial keeps the distribution
    params, distributions = fixed.params, fixed.distributions
    return optuna.trial.create_trial(params=params, distributions=distributions, value=score)


def _value(dimension: Dimension, value: Any) -> Any:
    """Return a value as Optuna knows it: texts of lists; rounding may have left a range."""
    if dimension.scale == "values":
        return json.dumps(value)
    low, high = dimension.values
    return min(max(value, low), high)
