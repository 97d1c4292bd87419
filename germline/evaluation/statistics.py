"""Statistics of scores: intervals by the bootstrap, tests of pairs, and several samples in one.

Intervals are of 95 %. Resamples are drawn by a seed, so the same values always have the same
interval. Values are finite: leave out what is missing first.

- Over examples: `bootstrap_interval`, `wilson_interval`, `mcnemar`.
- Over run seeds, `probability_of_improvement` with the conventions of rliable (Agarwal et al. 2021,
  arXiv 2108.13264): its bootstrap draws the seeds of both methods separately.
- Reducers of several samples: each turns `values[samples, examples]` into one value per example:
  `best_of_k` (pass@k where values are 0 or 1) and `majority_at_k`.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float64

RESAMPLES = 2_000
"""Resamples of a bootstrap; the ends of an interval vary by 1 to 2 % of its width."""

AT_ONCE = 1_000_000
"""Numbers of resamples that are in memory at the same time."""

Z_95 = 1.96
"""Half width of a 95 % interval, in standard errors."""

Interval = tuple[float, float]
Values = Sequence[float] | np.ndarray
"""Finite numbers, one per example, or per run seed."""


def bootstrap_interval(
    values: Values,
    statistic: Callable[..., Any] = np.mean,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the 95 % interval of a statistic by the BCa bootstrap.

    The percentiles of the resampled statistic are corrected for bias and skewness (Efron 1987, JASA
    82), and for few values: resamples of n values spread too little, by sqrt(1 - 1/n), and
    Student's t of n - 1 degrees of freedom is wider than the normal distribution (the expanded
    percentiles of Hesterberg 2015, Am. Stat. 69).

    Args:
        values: one per example; of fewer than two values the interval is NaN.
        statistic: takes an array and an `axis`, such as `numpy.mean` or `numpy.median`.
        resamples: how many resamples are drawn.
        seed: of the resamples.
    """
    array = np.asarray(values, dtype=np.float64)
    count = len(array)
    if count < 2:
        return math.nan, math.nan
    from scipy.stats import bootstrap  # takes a second

    half = student_t_95(count - 1.0) * math.sqrt(count / (count - 1))
    options: dict[str, Any] = {"n_resamples": resamples, "batch": max(1, AT_ONCE // count)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are all equal
        found = bootstrap(
            (array,), statistic, confidence_level=math.erf(half / math.sqrt(2)), rng=seed, **options
        )
    low, high = found.confidence_interval
    if math.isnan(low + high):  # neither bias nor skewness is known
        low, high = np.quantile(found.bootstrap_distribution, [0.025, 0.975])
    return float(low), float(high)


@cache
def student_t_95(dof: float) -> float:
    """Return the half width of a 95 % interval of Student's t, in standard errors."""
    from scipy.special import stdtrit  # takes half a second, and only intervals need it

    return float(stdtrit(dof, 0.975))


def wilson_interval(share: float, count: int) -> Interval:
    """Return the 95 % interval of a share p of n examples (Wilson 1927, JASA 22).

        (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    It is between 0 and 1, and has a positive width even if 100 of 100 answers are right.
    """
    p, n, z = share, count, Z_95
    center = p + z**2 / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    low, high = (center - half) / (1 + z**2 / n), (center + half) / (1 + z**2 / n)
    return min(p, max(0.0, low)), max(p, min(1.0, high))


def mcnemar(higher: int, lower: int) -> float:
    """Return the exact two-sided p value of McNemar's test (1947, Psychometrika 12).

    Of right and wrong answers, `higher` examples became right and `lower` became wrong; those that
    did not change say nothing. For other scores this is the sign test.
    """
    changed, fewer = higher + lower, min(higher, lower)
    tail = sum(math.comb(changed, count) for count in range(fewer + 1))
    return min(1.0, 2 * tail / 2**changed)


def probability_of_improvement(one: Values, other: Values) -> tuple[float, Interval]:
    """Return the probability that a run of `one` scores higher than one of `other`.

    Mann and Whitney's U, of all pairs of run seeds, with one half for equal scores. The percentiles
    of the stratified bootstrap are its interval, which is too narrow by a factor of about
    sqrt(1 - 1/n) for n seeds, so of 5 seeds it covers 85 %; NaN where a method has a single seed.
    """
    from scipy.stats import bootstrap  # takes a second

    def probability(first: np.ndarray, second: np.ndarray, axis: int = -1) -> Any:
        differences = np.sign(first[..., :, None] - second[..., None, :])
        return (1 + differences.mean(axis=(axis - 1, axis))) / 2

    both = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    low, high = math.nan, math.nan
    if min(map(len, both)) > 1:
        found = bootstrap(both, probability, method="percentile", n_resamples=RESAMPLES, rng=0)
        low, high = found.confidence_interval
    return float(probability(both[0], both[1])), (float(low), float(high))


def best_of_k(
    values: Float64[np.ndarray, "samples examples"], k: int
) -> Float64[np.ndarray, " examples"]:
    """Return the expected maximum of k of each example's n samples, drawn without replacement.

        sum_i C(i - 1, k - 1) / C(n, k) v_(i),    v_(1) <= ... <= v_(n)

    Where values are 0 or 1, it is pass@k, the unbiased estimate of Chen et al. (2021, arXiv
    2107.03374). The expected minimum is `-best_of_k(-values, k)`.
    """
    count = len(values)
    weights = [math.comb(place, k - 1) / math.comb(count, k) for place in range(count)]
    return np.array(weights) @ np.sort(values, axis=0)


def majority_at_k(
    values: Float64[np.ndarray, "samples examples"], answers: Sequence[Sequence[str | None]]
) -> Float64[np.ndarray, " examples"]:
    """Return the value of the answer that most samples of each example give.

    Wang et al. (2023, arXiv 2203.11171) call this self-consistency. Of answers that are equally
    frequent, the mean counts.

    Args:
        values: of the samples; equal answers may have different values, whose mean counts.
        answers: `[samples][examples]`; None is no vote, and decides only where all are None.
    """
    columns = zip(values.T, zip(*answers, strict=True), strict=True)
    return np.array([_majority(column, given) for column, given in columns])


def _majority(values: Float64[np.ndarray, " samples"], answers: Sequence[str | None]) -> float:
    votes = Counter([answer for answer in answers if answer is not None] or answers)
    winners = [answer for answer, count in votes.items() if count == max(votes.values())]
    means = [values[[answer == winner for answer in answers]].mean() for winner in winners]
    return float(np.mean(means))
