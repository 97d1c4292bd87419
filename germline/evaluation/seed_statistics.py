"""Statistics over several run seeds of one config: mean, range and a bootstrap interval.

A held-out score has an error over its examples; how far the score of another run seed would lie is
a different question, which only other run seeds answer. The interval is the percentile bootstrap of
the mean over seeds (Efron 1979, Annals of Statistics 7): seeds are drawn with replacement, and the
middle 95 % of the means is kept.

Limit: the bootstrap of few seeds is too narrow (with five, a nominal 95 % covers about 85 %), so
the number of seeds, the smallest and the largest value are always shown with it. The interval of
three seeds would be their range, as 1 of 27 draws repeats the smallest value three times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 10_000
"""Bootstrap samples; their noise in an end of the interval is about 1 % of its width."""

FEWEST_SEEDS = 5
"""Of fewer seeds no interval is given."""


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """One number, over run seeds.

    Attributes:
        seeds: number of run seeds.
        low: lower end of the 95 % interval of the mean; NaN with fewer than five seeds.
        high: upper end of it.
        smallest: over the seeds.
        largest: over the seeds.
    """

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


def seed_statistics(values: Sequence[float]) -> SeedStatistics:
    """Return mean, bootstrap interval and range of one value per run seed.

    Args:
        values: finite numbers, at least one.
    """
    array = np.asarray(values, dtype=np.float64)
    low = high = math.nan
    if len(array) >= FEWEST_SEEDS:
        rng = np.random.default_rng(0)  # the same report from the same runs
        means = array[rng.integers(len(array), size=(DRAWS, len(array)))].mean(axis=1)
        low, high = (float(end) for end in np.quantile(means, [0.025, 0.975]))
    return SeedStatistics(
        len(array), float(array.mean()), low, high, float(array.min()), float(array.max())
    )
