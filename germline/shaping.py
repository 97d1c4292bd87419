"""Compute the fitness of members from rewards, and utilities from fitness.

`fitness` reduces rewards (members x examples) to one number per member. `utilities` shapes the
fitness values into weights of mean zero for the gradient estimate. All numbers are float64, and
means use exactly rounded sums (`math.fsum`): the order of the examples does not change the fitness,
so equal members tie exactly.

    z_score          distance from the mean in standard deviations, cut at `clip`
    centered_ranks    ranks, from -0.5 to 0.5
    log_rank         utilities that fall with the logarithm of the rank
    raw              fitness minus its mean
    per_example      the same as raw, computed from rewards compared example by example

In every shaping, tied members get the same utility. If all members are equal, every utility is
exactly 0. A member without rewards gets 0, and so does its partner in an antithetic pair.

NaN marks a reward that an infrastructure failure lost; no computation uses it as a number. If some
rewards of a member are missing, its fitness is the member effect of an additive model, reward =
member + example, fitted by least squares to the observed rewards. So a member gains nothing when
the reward of a hard example is missing.
"""

import math
from functools import cache, partial

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from germline import registry
from germline.config import CenteredRanks, LogRank, PerExample, Raw, ShapingConfig, ZScore
from germline.types import Evaluation

RESOLUTION = 2.0**-22
"""Largest relative difference of two equal fitness values: two spacings of float32, which reward
models return. The division by a standard deviation would make utilities of size 1 of such."""


def fitness(rewards: Float[np.ndarray, "members examples"]) -> Float64[np.ndarray, " members"]:
    """Reduce rewards to the mean over examples; NaN entries are missing data.

    The fitness of a complete member is its plain mean, even if rewards of other members are
    missing. A member without any reward gets NaN.

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
    # An example without any observed reward is left out of the mean.
    complete = observed[:, seen_examples].all(axis=1) & seen_examples.any()
    for member in np.flatnonzero(complete):
        values[member] = exact_mean(rewards[member, seen_examples])
    partial = observed.any(axis=1) & ~complete
    if partial.any():
        values[partial] = _additive_fit(rewards, observed)[partial]
    return values


def per_example_deviations(
    rewards: Float[np.ndarray, "members examples"],
) -> Float64[np.ndarray, "members examples"]:
    """Divide every reward by the standard deviation of all members' rewards on the same example.

        r_ij / std_i(r_ij), and 0 where the rewards of all members tie

    The mean of the example is not subtracted: a constant added to all rewards of an example changes
    neither the additive fit nor the differences of fitness. NaN stays NaN.
    """
    scaled = np.where(np.isnan(rewards), np.nan, 0.0)
    for example in range(rewards.shape[1]):
        seen = ~np.isnan(rewards[:, example])
        group = rewards[seen, example].astype(np.float64)
        if all_equal(group):
            continue
        deviations = group - exact_mean(group)
        largest = np.max(np.abs(deviations))  # squares of tiny or huge values leave float64
        deviation = largest * np.sqrt(exact_mean((deviations / largest) ** 2))
        scaled[seen, example] = group / deviation
    return scaled


def utilities(
    config: ShapingConfig,
    evaluation: Evaluation,
    *,
    antithetic: bool,
    baseline: float | None = None,
) -> Float64[np.ndarray, " members"]:
    """Shape the rewards of a population; members without rewards get utility 0.

    Args:
        config: the shaping section of the config.
        evaluation: rewards, higher is better; NaN where missing.
        antithetic: members 2k and 2k + 1 are a pair (+noise, -noise); a pair is dropped if one of
            the two has no fitness.
        baseline: subtracted by `raw` instead of the mean; all members may then be equal.

    Raises:
        ValueError: a reward is infinite, the number of members is odd with `antithetic`, or a
            baseline is given to a shaping other than `raw`.
    """
    values = fitness(evaluation.rewards)
    if antithetic:
        values = _without_lone_halves(values)
    if isinstance(config, PerExample) and config.scale == "std":
        lost = np.isnan(values)[:, None]
        values = fitness(per_example_deviations(np.where(lost, np.nan, evaluation.rewards)))
    present = ~np.isnan(values)
    shaped = np.zeros(len(values))
    if baseline is not None:
        if not isinstance(config, Raw):
            raise ValueError(f"shaping={config.kind} has no use for a baseline; use raw")
        shaped[present] = values[present] - baseline
    elif not all_equal(values[present]):
        shaped[present] = _function_of(config.kind)(config, values[present])
    return shaped


_function_of = cache(partial(registry.implementation, "shaping"))
"""Kind of a shaping -> its function; cached, as signal metrics shape a generation many times."""


def z_score(
    config: ZScore, fitness: Float64[np.ndarray, " members"]
) -> Float64[np.ndarray, " members"]:
    """Standardize, as Qiu et al. (2025, arXiv 2509.24372) do, and clip extreme values.

        z_i = (F_i - mean F) / std F             with the population standard deviation
        u_i = c_i - mean c                       with c_i = z_i clipped to [-clip, clip]

    Without `clip`, u_i = z_i.
    """
    deviations = fitness - exact_mean(fitness)
    deviations /= np.max(np.abs(deviations))  # squares of tiny or huge values leave float64
    scores = deviations / math.sqrt(exact_mean(deviations**2))
    if config.clip is None:
        return scores
    cut = np.clip(scores, -config.clip, config.clip)
    return cut - exact_mean(cut)


def centered_ranks(
    _config: CenteredRanks, fitness: Float64[np.ndarray, " members"]
) -> Float64[np.ndarray, " members"]:
    """Rank from -0.5 (worst) to 0.5 (best); tied members share the average of their ranks.

        u_i = (N - rank_i) / (N - 1) - 1/2       rank 1 is the best

    Source: Salimans et al. (2017, arXiv 1703.03864).
    """
    order, starts, ends = rank_with_ties(fitness)
    # Twice the average rank of a tie, first + last, is an integer: the sum over members is exact.
    doubled = np.repeat(starts + ends - 1, ends - starts)
    top = len(fitness) - 1
    shaped = np.empty(len(fitness))
    shaped[order] = (doubled - top) / (2 * top)
    return shaped


def log_rank(
    _config: LogRank, fitness: Float64[np.ndarray, " members"]
) -> Float64[np.ndarray, " members"]:
    """Weight by the logarithm of the rank; all members of the worse half get the same utility.

        w_k = max(0, ln(N/2 + 1) - ln k)         of rank k, 1 for the best
        u_k = N (w_k / sum_j w_j - 1/N)

    Tied members share the average of the utilities of their ranks. Source: Wierstra et al. (2014,
    Natural Evolution Strategies, JMLR 15). Their gradient is a sum over members and that of
    `strategies.nes` is a mean; the factor N makes the two steps equal.
    """
    order, starts, ends = rank_with_ties(fitness)
    count = len(fitness)
    weights = [max(0.0, math.log(count / 2 + 1) - math.log(k)) for k in range(count, 0, -1)]
    by_rank = count * np.array(weights) / math.fsum(weights) - 1
    shared = [exact_mean(by_rank[start:end]) for start, end in zip(starts, ends, strict=True)]
    shaped = np.empty(count)
    shaped[order] = np.repeat(shared, ends - starts)
    return shaped


def mean_centered(
    _config: ShapingConfig, fitness: Float64[np.ndarray, " members"]
) -> Float64[np.ndarray, " members"]:
    """Subtract the mean and keep the unit of the reward: u_i = F_i - mean F.

    `per_example` without a scale gives the same utilities, because every member is evaluated on
    every example. It subtracts the mean reward of all members on an example:

        u_i = mean_j (r_ij - mean_i r_ij) = F_i - mean F

    With `scale: std`, `per_example` is u_i = mean_j (r_ij - mean_i r_ij) / std_i r_ij: the group
    advantage of GRPO (Shao et al. 2024, arXiv 2402.03300), where a member takes the place of a
    sample.
    """
    return fitness - exact_mean(fitness)


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


def _additive_fit(
    rewards: Float64[np.ndarray, "members examples"], observed: Bool[np.ndarray, "members examples"]
) -> Float64[np.ndarray, " members"]:
    """Fit reward = member + example by least squares; return member + mean example effect.

    The example effects are eliminated from the normal equations. One number stays undetermined for
    every group of members that shares no example with the other members. The least-norm solution
    sets the mean member effect of each such group to zero, which assumes that the groups are
    equally good on average.
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
    fitted[members] = member_effect + exact_mean(example_effect)
    return fitted


def _without_lone_halves(fitness: Float[np.ndarray, " members"]) -> Float64[np.ndarray, " members"]:
    """Drop both members of a pair if one has no fitness: the other would bias the gradient."""
    if len(fitness) % 2:
        raise ValueError(
            f"{len(fitness)} members cannot be antithetic pairs; use an even population or "
            "antithetic=false"
        )
    lost_pairs = np.isnan(fitness.reshape(-1, 2)).any(axis=1)
    return np.where(np.repeat(lost_pairs, 2), np.nan, fitness)
