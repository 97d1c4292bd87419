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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

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

    @property
    def has_interval(self) -> bool:
        """Whether there are enough seeds for the interval."""
        return self.seeds >= FEWEST_SEEDS


@dataclass(frozen=True, slots=True)
class SeedDifference:
    """The mean over run seeds of one config less that of another.

    Attributes:
        error: standard error of the mean; 0 if all values of each config, or all pairs, are equal.
        dof: degrees of freedom of the error.
        seeds: number of run seeds of the config, and of the one that is subtracted.
        paired: whether both configs have the same seeds.
    """

    mean: float
    error: float
    dof: float
    seeds: tuple[int, int]
    paired: bool

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of Student's t; None where equal values leave its width unknown."""
        if not self.error:
            return None
        half = student_t_95(self.dof) * self.error
        return self.mean - half, self.mean + half

    @property
    def pairing(self) -> str:
        """How the seeds of both configs enter the interval, in words."""
        return "paired by seed" if self.paired else "not paired, as the seeds differ"

    @property
    def decides(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and self.interval[0] * self.interval[1] > 0


def seed_difference(one: Mapping[int, float], other: Mapping[int, float]) -> SeedDifference:
    """Return the mean of a config less that of another; each has two finite values or more."""
    seeds = len(one), len(other)
    if one.keys() == other.keys():
        pairs = np.array([one[seed] - other[seed] for seed in one])
        error = _error_of_mean(pairs)
        mean = _rounded(float(pairs.mean()), one, other)
        return SeedDifference(mean, error, len(pairs) - 1.0, seeds, paired=True)
    values = [np.array([*some.values()], dtype=np.float64) for some in (one, other)]
    squares = [_error_of_mean(some) ** 2 for some in values]
    parts = [square**2 / (len(some) - 1) for square, some in zip(squares, values, strict=True)]
    dof = sum(squares) ** 2 / sum(parts) if sum(parts) else float(sum(seeds) - 2)
    mean = _rounded(float(values[0].mean() - values[1].mean()), one, other)
    return SeedDifference(mean, math.sqrt(sum(squares)), dof, seeds, paired=False)


def _rounded(difference: float, *values: Mapping[int, float]) -> float:
    """Return 0 for a difference that is no more than the rounding of the values it is of."""
    largest = max(abs(value) for some in values for value in some.values())
    return 0.0 if abs(difference) <= ROUNDING * largest else difference


def seed_statistics(values: Sequence[float]) -> SeedStatistics:
    """Return mean, 95 % interval and range of one finite value per run seed."""
    array = np.asarray(values, dtype=np.float64)
    mean, half = float(array.mean()), math.nan
    if len(array) >= FEWEST_SEEDS:
        error = _error_of_mean(array)
        half = error and student_t_95(len(array) - 1.0) * error
    smallest, largest = float(array.min()), float(array.max())
    return SeedStatistics(len(array), mean, mean - half, mean + half, smallest, largest)


def _error_of_mean(values: Float64[np.ndarray, " seeds"]) -> float:
    """Return the standard error of a mean; 0 where the values differ by their rounding alone."""
    if float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max()):
        return 0.0
    return float(values.std(ddof=1)) / math.sqrt(len(values))
