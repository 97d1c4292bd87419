"""Statistics of scores: intervals by the bootstrap, tests of pairs, and several samples in one.

Intervals are of 95 %. Resamples are drawn by a seed, so the same values always have the same
interval. Values are finite: leave out what is missing first.

- Over examples: `bootstrap_interval`, `paired_bootstrap`, `wilson_interval`, `mcnemar`.
- Over run seeds and tasks, `scores[seeds, tasks]`, with the conventions of rliable (Agarwal et al.
  2021, arXiv 2108.13264): `interquartile_mean`, `probability_of_improvement`, and their stratified
  bootstrap, which draws the seeds of every task separately.
- Reducers of several samples: each turns `values[samples, examples]` into one value per example:
  `best_of_k` (pass@k where values are 0 or 1) and `majority_at_k`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from statistics import NormalDist
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

    The method corrects the percentiles of the resampled statistic for bias and skewness (Efron
    1987, JASA 82), as `scipy.stats.bootstrap` does, and for few values: resamples of n values
    spread too little, by sqrt(1 - 1/n), and Student's t of n - 1 degrees of freedom is wider than
    the normal distribution (the expanded percentiles of Hesterberg 2015, Am. Stat. 69).

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
    rng = np.random.default_rng(seed)
    step = max(1, AT_ONCE // count)
    sizes = [min(step, resamples - first) for first in range(0, resamples, step)]
    drawn = [statistic(array[rng.integers(count, size=(some, count))], axis=1) for some in sizes]
    resampled = np.concatenate(drawn)
    return _bca_interval(resampled, float(statistic(array, axis=0)), _left_out(array, statistic))


def _left_out(
    array: Float64[np.ndarray, " values"], statistic: Callable[..., Any]
) -> Float64[np.ndarray, " values"]:
    """Return the statistic without each of the values (the jackknife)."""
    if statistic is np.mean:  # in linear time
        return (array.sum() - array) / (len(array) - 1)
    return np.array([statistic(np.delete(array, place), axis=0) for place in range(len(array))])


def _bca_interval(
    resampled: Float64[np.ndarray, " resamples"],
    value: float,
    left_out: Float64[np.ndarray, " values"],
) -> Interval:
    below = float((resampled < value).mean() + (resampled <= value).mean()) / 2
    deviations = left_out.mean() - left_out
    spread = float((deviations**2).sum())
    if not 0 < below < 1 or not spread:
        return _percentiles(resampled)
    normal = NormalDist()
    bias = normal.inv_cdf(below)
    acceleration = float((deviations**3).sum()) / (6 * spread**1.5)
    half = student_t_95(len(left_out) - 1.0) * math.sqrt(len(left_out) / (len(left_out) - 1))
    ends = [bias - half, bias + half]
    low, high = (normal.cdf(bias + end / (1 - acceleration * end)) for end in ends)
    return _percentiles(resampled, low, high)


@cache
def student_t_95(dof: float) -> float:
    """Return the half width of a 95 % interval of Student's t, in standard errors."""
    from scipy.special import stdtrit  # takes half a second, and only intervals need it

    return float(stdtrit(dof, 0.975))


def _percentiles(
    resampled: Float64[np.ndarray, " resamples"], low: float = 0.025, high: float = 0.975
) -> Interval:
    first, last = np.quantile(resampled, [low, high]).tolist()
    return first, last


def paired_bootstrap(one: Values, other: Values, *, seed: int = 0) -> Interval:
    """Return the 95 % interval of the mean of `one[examples]` less `other[examples]`.

    Pairs are drawn, so an example that is hard for both widens nothing.
    """
    return bootstrap_interval(np.subtract(one, other, dtype=np.float64), seed=seed)


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


def interquartile_mean(scores: Values) -> float:
    """Return the mean of the middle half of all scores, such as `scores[seeds, tasks]`.

    A quarter of the scores, rounded down, is cut off at each end: `scipy.stats.trim_mean(scores,
    0.25)`.
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def stratified_interval(
    statistic: Callable[..., float], *scores: Values, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the 95 % interval of a statistic of `scores[seeds, tasks]` of one or more methods.

    The percentiles of the stratified bootstrap: the seeds of every task of every method are drawn
    separately. With one task and n seeds the interval is too narrow by a factor of about
    sqrt(1 - 1/n), so of 5 seeds it covers 85 %; NaN where a method has a single seed.

    Args:
        statistic: takes one array per method, and returns a number.
        scores: of each method, `[seeds, tasks]`, or `[seeds]` of one task.
        resamples: how many resamples are drawn.
        seed: of the resamples.
    """
    tables = [_as_table(one) for one in scores]
    if any(len(table) < 2 for table in tables):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)

    def resample(table: Float64[np.ndarray, "seeds tasks"]) -> Float64[np.ndarray, "seeds tasks"]:
        return np.take_along_axis(table, rng.integers(len(table), size=table.shape), axis=0)

    return _percentiles(
        np.array([statistic(*map(resample, tables)) for _ in range(resamples)], dtype=np.float64)
    )


def probability_of_improvement(one: Values, other: Values) -> float:
    """Return the probability that a run of `one` scores higher than a run of `other`.

    Mann and Whitney's U, of all pairs of run seeds, with one half for equal scores; the mean over
    tasks. `one[seeds, tasks]` and `other[seeds, tasks]` may have different numbers of seeds, and
    lack the second axis where there is one task.
    `stratified_interval(probability_of_improvement, one, other)` is its interval.
    """
    difference = _as_table(one)[:, None] - _as_table(other)[None]
    return float(((np.sign(difference) + 1) / 2).mean())


def _as_table(scores: Values) -> Float64[np.ndarray, "seeds tasks"]:
    array = np.asarray(scores, dtype=np.float64)
    return array if array.ndim == 2 else array[:, None]


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that k of n samples, drawn without replacement, hold a right one.

        1 - C(n - c, k) / C(n, k)

    of which c are right: the unbiased estimate of Chen et al. (2021, arXiv 2107.03374). k <= n.
    """
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def best_of_k(
    values: Float64[np.ndarray, "samples examples"], k: int
) -> Float64[np.ndarray, " examples"]:
    """Return the expected maximum of k of each example's n samples, drawn without replacement.

        sum_i C(i - 1, k - 1) / C(n, k) v_(i),    v_(1) <= ... <= v_(n)

    which is `pass_at_k` where values are 0 or 1. The expected minimum is `-best_of_k(-values, k)`.
    """
    count = len(values)
    weights = [math.comb(place, k - 1) / math.comb(count, k) for place in range(count)]
    return np.array(weights) @ np.sort(values, axis=0)


def majority_at_k(
    values: Float64[np.ndarray, "samples examples"],
    answers: Sequence[Sequence[str | None]],
    k: int,
) -> Float64[np.ndarray, " examples"]:
    """Return the value of the answer that most of k samples of each example give.

    The mean over the n // k groups of consecutive samples (Wang et al. 2023, arXiv 2203.11171,
    call this self-consistency).

    Args:
        values: of the samples; equal answers may have different values, whose mean counts.
        answers: `[samples][examples]`; None is no vote, and decides only where all are None.
        k: the number of votes.
    """
    groups = [range(first, first + k) for first in range(0, len(values) - k + 1, k)]
    return np.array(
        [
            np.mean(
                [
                    _majority(column[list(rows)], [answers[row][place] for row in rows])
                    for rows in groups
                ]
            )
            for place, column in enumerate(values.T)
        ]
    )


def _majority(values: Float64[np.ndarray, " samples"], answers: Sequence[str | None]) -> float:
    """Return the mean value of the most frequent answer, or of those that are equally frequent."""
    given = [answer for answer in answers if answer is not None]
    votes: Counter[str | None] = Counter(given or answers)
    winners = [answer for answer, count in votes.items() if count == max(votes.values())]
    means = [values[[answer == winner for answer in answers]].mean() for winner in winners]
    return float(np.mean(means))
