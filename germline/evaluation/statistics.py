"""Statistics of scores: intervals by the bootstrap, tests of pairs, and several samples in one.

Intervals are of 95 %. Resamples are drawn by a seed, so the same values always have the same
interval. Values are finite: leave out what is missing first.

- Over examples: `bootstrap_interval`, `wilson_interval`, `mcnemar`.
- Over run seeds, `seed_statistics` and `seed_difference`: Student's t interval of the mean, which
  covers 95 % of few normal values too; a bootstrap of five would cover 85 %. An error over examples
  does not tell how far the score of another seed would lie. Two configs are paired if both have the
  same seeds, as a seed has the same batches and noise; otherwise the error is that of Welch (1947,
  Biometrika 34). `probability_of_improvement` has the conventions of rliable (Agarwal et al. 2021,
  arXiv 2108.13264): its bootstrap draws the seeds of both methods separately.
- Reducers of several samples: each turns `values[samples, examples]` into one value per example:
  `best_of_k` (pass@k where values are 0 or 1) and `majority_at_k`.
"""

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

ROUNDING = 1e-12
"""Relative size below which values are equal: 0.3 - 0.1 is not 0.2 in floating point."""

FEWEST_SEEDS = 5
"""Of fewer seeds no interval is given: it would be several times as wide as their range."""

Interval = tuple[float, float]
Estimate = tuple[float, Interval]
"""A mean, and its 95 % interval."""

Values = Sequence[float] | np.ndarray
"""Finite numbers, one per example, or per run seed."""


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """One number, over run seeds; `low` and `high` are the 95 % interval of the mean, or NaN."""

    seeds: int
    mean: float
    low: float
    high: float
    smallest: float
    largest: float


@dataclass(frozen=True, slots=True)
class SeedDifference:
    """The mean over run seeds of one config less that of another.

    Attributes:
        interval: of 95 %; None where equal values or differences leave its width unknown.
        seeds: number of run seeds of the config, and of the one that is subtracted.
        paired: whether both configs have the same seeds.
    """

    mean: float
    interval: tuple[float, float] | None
    seeds: tuple[int, int]
    paired: bool

    @property
    def decides(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and self.interval[0] * self.interval[1] > 0


def bootstrap_interval(values: Values) -> Interval:
    """Return the 95 % interval of the mean by the BCa bootstrap; NaN of fewer than two values.

    The percentiles of the resampled mean are corrected for bias and skewness (Efron 1987, JASA 82),
    and for few values: resamples of n values spread too little, by sqrt(1 - 1/n), and Student's t
    of n - 1 degrees of freedom is wider than the normal distribution (the expanded percentiles of
    Hesterberg 2015, Am. Stat. 69).
    """
    array = np.asarray(values, dtype=np.float64)
    count = len(array)
    if count < 2:
        return math.nan, math.nan
    from scipy.stats import bootstrap  # takes a second

    half = student_t_95(count - 1.0) * math.sqrt(count / (count - 1))
    options: dict[str, Any] = {"n_resamples": RESAMPLES, "batch": max(1, AT_ONCE // count)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are all equal
        found = bootstrap(
            (array,), np.mean, confidence_level=math.erf(half / math.sqrt(2)), rng=0, **options
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


def seed_difference(one: Mapping[int, float], other: Mapping[int, float]) -> SeedDifference:
    """Return the mean of a config less that of another; each has two finite values or more."""
    from scipy.stats import ttest_ind, ttest_rel

    paired = one.keys() == other.keys()
    both = [*one.values()], [other[seed] for seed in (one if paired else other)]
    rounding = ROUNDING * max(map(abs, (*both[0], *both[1])))
    mean = statistics.fmean(both[0]) - statistics.fmean(both[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are nearly equal
        found = ttest_rel(*both) if paired else ttest_ind(*both, equal_var=False)
    low, high = map(float, found.confidence_interval())
    interval = (low, high) if high - low > rounding else None
    mean = mean if abs(mean) > rounding else 0.0
    return SeedDifference(mean, interval, (len(one), len(other)), paired)


def seed_statistics(values: Sequence[float]) -> SeedStatistics:
    """Return mean, 95 % interval and range of one finite value per run seed."""
    count, mean, smallest, largest = len(values), statistics.fmean(values), min(values), max(values)
    half = math.nan
    if count >= FEWEST_SEEDS:
        is_known = largest - smallest > ROUNDING * max(map(abs, values))
        error = statistics.stdev(values) / math.sqrt(count) if is_known else 0.0
        half = error and student_t_95(count - 1.0) * error
    return SeedStatistics(count, mean, mean - half, mean + half, smallest, largest)


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
