"""The recorded curves of a run, and the likely cause of a decline of its score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from germline.types import HeldOutScore

Cause = Literal["hack", "overfit", "walk", "no signal", "unknown"]
Known = float | None

BLOCK = 10
"""Generations per block of training fitness."""

NO_AGREEMENT = 0.05
"""Mean agreement of halves below which updates follow no signal."""

NEAR_THE_EDGE = 0.8
"""Share of the edge from which on the walk counts as the cause; the edge is known only roughly."""

MANY_EMPTY = 0.2
"""Rise of the share of empty texts that means reward hacking, if the fitness does not fall."""


@dataclass(frozen=True)
class RunCurves:
    """The recorded curves of a run: held-out scores, and one value per generation of the others.

    Attributes:
        scores: held-out scores, in order.
        fitness: mean over the members.
        agreement: cosine of the updates of two halves of the examples.
        empty: share of completions without text.
        walk: random walk of the updates so far, in the unit of sigma.
        sigma: of the members.
        cost_weight: lambda, where the reward weighs a cost by it.
        edge: sigma at which random members break, if known.
    """

    scores: Sequence[HeldOutScore] = ()
    fitness: Sequence[Known] = ()
    agreement: Sequence[Known] = ()
    empty: Sequence[Known] = ()
    walk: Sequence[Known] = ()
    sigma: Sequence[Known] = ()
    cost_weight: Sequence[Known] = ()
    edge: float | None = None


def likely_cause(curves: RunCurves, since: int, scores: Sequence[HeldOutScore] = ()) -> Cause:
    """Return the most certain cause.

    Args:
        curves: of the run.
        since: number of updates after which the score was best.
        scores: the best one and the last two, or means of them, if held-out scores declined.
    """
    rise = _rise(curves.fitness, since)
    if scores and _is_hacked(curves, since, scores, rise):
        return "hack"
    if scores and rise > 0:
        return "overfit"
    walk = next((one for one in reversed(curves.walk) if one is not None), None)
    if walk is not None and curves.edge is not None and walk >= NEAR_THE_EDGE * curves.edge:
        return "walk"
    agreed = [one for one in curves.agreement[since:] if one is not None]
    if len(agreed) >= BLOCK and sum(agreed) / len(agreed) < NO_AGREEMENT:
        return "no signal"
    return "unknown"


def _rise(values: Sequence[Known], since: int) -> float:
    """Return the rise of the last values over those at the best score, less 2 standard errors."""
    was = [value for value in values[:since][-BLOCK:] if value is not None]
    now = [value for value in values[since:][-BLOCK:] if value is not None]
    if min(len(was), len(now)) < 2:
        return -math.inf
    error = math.hypot(*(float(np.std(some, ddof=1)) / math.sqrt(len(some)) for some in (was, now)))
    difference = float(np.mean(now) - np.mean(was))
    return difference - 2 * error


def _is_hacked(curves: RunCurves, since: int, scores: Sequence[HeldOutScore], rise: float) -> bool:
    """Return whether the reward rises while the metric or the texts get worse."""
    best, *last = (score.reward for score in scores)
    if sum(last) / len(last) > best and scores[0].higher_is_better is not None:
        return True
    was, now = mean_of_known(curves.empty[:since][-BLOCK:]), mean_of_known(curves.empty[-BLOCK:])
    return rise > 0 and was is not None and now is not None and now > was + MANY_EMPTY


def mean_of_known(values: Sequence[Known]) -> float | None:
    """Average the values that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
