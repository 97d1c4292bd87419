"""Statistics over several run seeds of one config: mean, range and 95 % interval of the mean.

A held-out score has an error over its examples; how far the score of another run seed would lie is
a different question, which only other run seeds answer. The interval is Student's t interval of the
mean over seeds, which covers 95 % of few normal values too; a bootstrap of five would cover 85 %.
The number of seeds, the smallest and the largest value are always shown with it.

The difference of two configs has the same interval. Where both configs have the same run seeds, the
values are paired by seed, because the same seed has the same batches and noise; otherwise the error
and the degrees of freedom are those of Welch (1947, Biometrika 34).
"""

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from germline.evaluation.statistics import student_t_95

ROUNDING = 1e-12
"""Relative size below which values are equal: 0.3 - 0.1 is not 0.2 in floating point."""

FEWEST_SEEDS = 5
"""Of fewer seeds no interval is given: it would be several times as wide as their range."""


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


def seed_difference(one: Mapping[int, float], other: Mapping[int, float]) -> SeedDifference:
    """Return the mean of a config less that of another; each has two finite values or more."""
    from scipy.stats import ttest_ind, ttest_rel  # takes a second

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
