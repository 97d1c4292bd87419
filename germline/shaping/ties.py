"""Ties between fitness values, and means that do not depend on the order of the values.

Fitness values with a relative difference up to `RESOLUTION` are equal. It is two float32 spacings,
because reward models return float32. The common division by std + 1e-8 turns such differences into
utilities of size 1.
"""

import math

import numpy as np
from jaxtyping import Float64, Int

RESOLUTION = 2.0**-22
"""Largest relative difference of two equal fitness values: two spacings of float32."""


def exact_mean(values: Float64[np.ndarray, " n"]) -> float:
    """Average with an exactly rounded sum, so the order of the values does not matter."""
    return math.fsum(values.tolist()) / len(values)


def all_equal(values: Float64[np.ndarray, " n"]) -> bool:
    """Return whether no two values differ by more than `RESOLUTION`."""
    if len(values) < 2:
        return True
    return bool(np.ptp(values) <= RESOLUTION * np.max(np.abs(values)))


def rank_with_ties(
    values: Float64[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " ties"], Int[np.ndarray, " ties"]]:
    """Sort, worst first, and find the ties: the values `order[start:end]` are equal.

    Neighbors in rank tie if they differ by at most `RESOLUTION` of the larger magnitude.

    Returns:
        The order, and the start and end of each tie in it.
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    magnitude = np.maximum(np.abs(ascending[1:]), np.abs(ascending[:-1]))
    starts = np.flatnonzero(np.append(True, np.diff(ascending) > RESOLUTION * magnitude))
    return order, starts, np.append(starts[1:], len(values))
