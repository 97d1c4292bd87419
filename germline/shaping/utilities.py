"""Compute utilities from fitness: one function per shaping; ties are averaged, the mean is zero.

N is the number of members that have a fitness. `utilities` calls the equations with these members
alone, and only if they are not all equal, so no equation divides by zero.
"""

import math

import numpy as np
from jaxtyping import Float, Float64

from germline import registry
from germline.config import CenteredRanks, LogRank, PerExample, Raw, ShapingConfig, ZScore
from germline.shaping.fitness import fitness, per_example_deviations
from germline.shaping.ties import all_equal, exact_mean, rank_with_ties
from germline.types import Evaluation


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
        shaped[present] = _elite(values[present], _shaped(config, values[present]), config.elite)
    return shaped


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


def _shaped(
    config: ShapingConfig, values: Float64[np.ndarray, " members"]
) -> Float64[np.ndarray, " members"]:
    shaped: Float64[np.ndarray, " members"] = registry.create("shaping", config, values)
    return shaped


def _elite(
    fitness: Float64[np.ndarray, " members"],
    shaped: Float64[np.ndarray, " members"],
    share: float,
) -> Float64[np.ndarray, " members"]:
    """Keep the utilities of the fittest `share` of members; the others get the mean of theirs.

    The mean of all utilities stays zero, and no member outside the elite has a higher utility than
    one inside. The elite has ceil(share * N) members, plus all members that tie with the last one.
    """
    # The rounding error of a product such as 0.1 * 30 must not add a member.
    outside = len(fitness) - math.ceil(share * len(fitness) - 1e-9)
    order, starts, _ends = rank_with_ties(fitness)
    others = order[: starts[np.searchsorted(starts, outside, side="right") - 1]]
    if len(others):
        shaped[others] = exact_mean(shaped[others])
    return shaped


def _without_lone_halves(
    fitness: Float[np.ndarray, " members"],
) -> Float64[np.ndarray, " members"]:
    """Drop both members of a pair if one has no fitness: the other would bias the gradient."""
    if len(fitness) % 2:
        raise ValueError(
            f"{len(fitness)} members cannot be antithetic pairs; use an even population or "
            "antithetic=false"
        )
    lost_pairs = np.isnan(fitness.reshape(-1, 2)).any(axis=1)
    return np.where(np.repeat(lost_pairs, 2), np.nan, fitness)
