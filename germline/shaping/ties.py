"""When two fitness values are one, and sums that do not depend on the order of what is summed.

Fitness closer than `RESOLUTION` (relative) is equal: two float32 spacings, because that is what
reward models deliver. Dividing by std + 1e-8, as the field does, turns such differences into
utilities of size 1.
"""

import math

import numpy as np
from jaxtyping import Float64, Int

RESOLUTION = 2.0**-22
"""Relative difference below which two fitness values are one: two spacings of float32."""


def exact_mean(values: Float64[np.ndarray, " n"]) -> float:
    """Average with an exactly rounded sum, so the order of the values does not matter."""
    return math.fsum(values.tolist()) / len(values)


def all_equal(values: Float64[np.ndarray, " n"]) -> bool:
    """Say whether no difference between the values exceeds their resolution."""
    if len(values) < 2:
        return True
    return bool(np.ptp(values) <= RESOLUTION * np.max(np.abs(values)))


def rank_with_ties(
    values: Float64[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " ties"], Int[np.ndarray, " ties"]]:
    """Sort, worst first, and find the ties: values `order[start:end]` are one.

    Neighbors in rank tie when they differ by no more than `RESOLUTION` of the larger magnitude.

    Returns:
        The order, and where each tie starts and ends in it.
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    magnitude = np.maximum(np.abs(ascending[1:]), np.abs(ascending[:-1]))
    starts = np.flatnonzero(np.append(True, np.diff(ascending) > RESOLUTION * magnitude))
    return order, starts, np.append(starts[1:], len(values))
