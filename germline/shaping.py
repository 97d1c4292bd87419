"""Rewards become the fitness of members, and fitness becomes utilities.

`fitness` reduces rewards (members x examples) to one number per member, `utilities` shapes those
into weights of mean zero for the gradient estimate. Everything is float64 and means are taken of
exactly rounded sums (`math.fsum`): the same rewards give the same fitness in whatever order the
examples stand, so equal members tie exactly.

**Missing data.** NaN marks a reward that infrastructure lost; it is never read as a number. A
member that lost some examples gets the member effect of an additive model, reward = member +
example, fitted by least squares to what was observed: losing a hard example is no advantage. A
member without any reward has fitness NaN and utility 0, and under antithetic sampling so has its
partner.

**Ties.** Fitness closer than `RESOLUTION` (relative) is equal: two float32 spacings, because that
is what reward models deliver. When all members are equal in this sense every utility is exactly 0.
Dividing by std + 1e-8, as the field does, turns such differences into utilities of size 1.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Float64

RESOLUTION = 2.0**-22
"""Relative difference below which two fitness values are one: two spacings of float32."""


def fitness(rewards: Float[np.ndarray, "members examples"]) -> Float64[np.ndarray, " members"]:
    """Reduce rewards to the mean over examples; NaN entries are missing data.

    A complete member's fitness is its plain mean whatever others lost; a member with no data gets
    NaN.

    Raises:
        ValueError: a reward is infinite, or there are no examples.
    """
    rewards = rewards.astype(np.float64)
    if rewards.shape[1] == 0:
        raise ValueError("rewards have no examples, so no member has a fitness; use batch >= 1")
    infinite = np.argwhere(np.isinf(rewards))
    if len(infinite):
        member, example = infinite[0]
        raise ValueError(
            f"reward of member {member} on example {example} is {rewards[member, example]}; "
            "a reward must be a finite number, or NaN where it is missing"
        )
    observed = ~np.isnan(rewards)
    values = np.full(len(rewards), np.nan)
    seen_examples = observed.any(axis=0)
    # An example nobody has a reward for says nothing about anyone: it leaves the mean.
    complete = observed[:, seen_examples].all(axis=1) & seen_examples.any()
    for member in np.flatnonzero(complete):
        values[member] = _mean(rewards[member, seen_examples])
    partial = observed.any(axis=1) & ~complete
    if partial.any():
        values[partial] = _additive_fit(rewards, observed)[partial]
    return values


def utilities(
    kind: str, fitness: Float[np.ndarray, " members"], *, antithetic: bool
) -> Float64[np.ndarray, " members"]:
    """Shape fitness with the shaping named `kind`; missing members get utility 0.

    Args:
        kind: a name in `SHAPING`.
        fitness: higher is better; NaN where missing.
        antithetic: members 2k and 2k + 1 are a pair (+noise, -noise), complete or dropped.

    Raises:
        ValueError: the shaping is unknown, or pairs are asked of an odd number of members.
    """
    if kind not in SHAPING:
        raise ValueError(f"shaping={kind} is unknown; choose one of {', '.join(SHAPING)}")
    values = fitness.astype(np.float64)
    if antithetic:
        if len(values) % 2:
            raise ValueError(
                f"{len(values)} members cannot be antithetic pairs; use an even population or "
                "antithetic=false"
            )
        # A lone half would let the utility's common part push along its noise.
        lost_pairs = np.isnan(values.reshape(-1, 2)).any(axis=1)
        values[np.repeat(lost_pairs, 2)] = np.nan
    return SHAPING[kind](values)


def z_score(fitness: Float[np.ndarray, " members"]) -> Float64[np.ndarray, " members"]:
    """Standardise: (fitness - mean) / population standard deviation, as Qiu et al. (2025) do.

    All 0 when the spread is within `RESOLUTION` of the largest magnitude; NaN members get 0.
    """
    shaped = np.zeros(len(fitness))
    present = ~np.isnan(fitness)
    values = fitness[present].astype(np.float64)
    if _all_equal(values):
        return shaped
    deviations = values - _mean(values)
    deviations /= np.max(np.abs(deviations))  # squares of tiny or huge values leave float64
    shaped[present] = deviations / math.sqrt(_mean(deviations**2))
    return shaped


def centred_ranks(fitness: Float[np.ndarray, " members"]) -> Float64[np.ndarray, " members"]:
    """Rank from -0.5 (worst) to 0.5 (best); tied members share the average of their ranks.

    Neighbours in rank tie when they differ by no more than `RESOLUTION` of the larger magnitude.
    All 0 when all tie; NaN members get 0.
    """
    shaped = np.zeros(len(fitness))
    present = ~np.isnan(fitness)
    values = fitness[present].astype(np.float64)
    if _all_equal(values):
        return shaped
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    magnitude = np.maximum(np.abs(ascending[1:]), np.abs(ascending[:-1]))
    starts = np.flatnonzero(np.append(True, np.diff(ascending) > RESOLUTION * magnitude))
    ends = np.append(starts[1:], len(values))
    # Twice the average rank of a tie, first + last, is an integer: the sum over members is exact.
    doubled = np.repeat(starts + ends - 1, ends - starts)
    top = len(values) - 1
    ranks = np.empty(len(values))
    ranks[order] = (doubled - top) / (2 * top)
    shaped[present] = ranks
    return shaped


SHAPING: dict[str, Callable[[Float[np.ndarray, " members"]], Float64[np.ndarray, " members"]]] = {
    "z_score": z_score,
    "centred_ranks": centred_ranks,
}
"""The shapings by name: fitness (NaN where missing) to utilities of mean zero."""


def _mean(values: Float64[np.ndarray, " n"]) -> float:
    """Average with an exactly rounded sum, so the order of the values does not matter."""
    return math.fsum(values.tolist()) / len(values)


def _all_equal(values: Float64[np.ndarray, " n"]) -> bool:
    """Say whether no difference between the values exceeds their resolution."""
    if len(values) < 2:
        return True
    return bool(np.ptp(values) <= RESOLUTION * np.max(np.abs(values)))


def _additive_fit(
    rewards: Float64[np.ndarray, "members examples"],
    observed: Bool[np.ndarray, "members examples"],
) -> Float64[np.ndarray, " members"]:
    """Fit reward = member + example by least squares; return member + mean example effect.

    The normal equations with the example effects eliminated. They leave one number free for every
    group of members that shares no example with the rest; the least-norm solution sets the mean of
    each group's member effects to zero, so such groups are taken to be equally good on average.
    """
    members = observed.any(axis=1)
    examples = observed.any(axis=0)
    seen = observed[np.ix_(members, examples)].astype(np.float64)
    known = np.where(seen > 0, rewards[np.ix_(members, examples)], 0.0)
    per_example = seen.sum(axis=0)
    example_mean = known.sum(axis=0) / per_example
    matrix = np.diag(seen.sum(axis=1)) - (seen / per_example) @ seen.T
    right = ((known - example_mean) * seen).sum(axis=1)
    member_effect = np.linalg.lstsq(matrix, right)[0]
    example_effect = example_mean - (seen.T @ member_effect) / per_example
    fitted = np.full(len(rewards), np.nan)
    fitted[members] = member_effect + _mean(example_effect)
    return fitted
