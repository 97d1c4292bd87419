"""The difference of two held-out scores on the same examples: is one better, has one declined?

An example that is hard for both scores adds nothing to the difference, so its interval is narrower
than those of the two scores. It assumes many examples that differ, and is too narrow for few: if 5
of 35 examples improve and no other changes, it excludes 0, but an exact sign test (two-sided;
McNemar's for right and wrong answers) has p = 0.06. So where fewer than 10 examples differ, this
test decides too.

A score has declined if its last value is below its best one, by a one-sided sign test over the
examples of both. A run is tested after every score, and the best of the k scores is chosen, so that
many pairs of scores are tested. A decline counts if

    (1)  p <= 0.01 / (k (k - 1)^2)

These bounds, times the k - 1 references of a last score, sum to 0.01 over all k: for scores that
differ by chance alone, the probability of a false alarm is below 1 %, however long the run is. A
loss below a fifth of what the run had gained is not reported.

Limit: the test is over examples. Weights that really vary from score to score do decline, for as
long as the next update does not undo it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from germline.evaluation.held_out import confidence_interval, mean_and_error
from germline.evaluation.statistics import (
    Z_95,
    Estimate,
    Interval,
    Values,
    bootstrap_interval,
    mcnemar,
    student_t_95,
)
from germline.record.early_stopping import best_score, signed_score
from germline.types import HeldOutScore

FEW_CHANGED = 10
"""Fewer examples that differ are not enough for the interval alone."""

ALPHA = 0.01
"""Probability of a false alarm in a run whose score does not decline."""

WORTH_TELLING = 0.2
"""Share of the gain of a run that it must have lost before a decline is reported."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean over the n examples that both have of one score less another.

    Attributes:
        standard_error: NaN for one example.
        n: number of examples.
        higher: number of examples on which the first score is higher than the other one:
            progressions, if the score is a share.
        lower: number on which it is lower: regressions.
        proportion: whether each example is right or wrong in both scores.
        differences: of each of the n examples.
    """

    mean: float
    standard_error: float
    n: int
    higher: int
    lower: int
    proportion: bool
    differences: tuple[float, ...] = field(repr=False)

    @classmethod
    def of(cls, values: Values, *, proportion: bool = False) -> "PairedDifference":
        """Summarize the differences of examples; NaN is missing."""
        known = tuple(float(value) for value in values if math.isfinite(value))
        counts = len(known), *_changed(known)
        return cls(*mean_and_error(known), *counts, proportion=proportion, differences=known)

    @property
    def sign_test(self) -> float:
        """The p value of an exact two-sided sign test (McNemar's) on the examples that differ."""
        return mcnemar(self.higher, self.lower)

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the mean, by `difference_interval`."""
        return difference_interval(self.differences, proportion=self.proportion)

    @property
    def estimate(self) -> Estimate:
        """The mean with its interval."""
        return self.mean, self.interval

    @property
    def certain_sign(self) -> int:
        """The sign of the mean, 0 if chance explains it, by `certain_sign`."""
        return certain_sign(self.differences, proportion=self.proportion)


@lru_cache  # a report asks several times for the same interval
def difference_interval(differences: tuple[float, ...], *, proportion: bool = False) -> Interval:
    """Return the 95 % interval of the mean of paired differences.

    If b of n answers became right and c became wrong, it is that of Agresti and Min (2005, Stat.
    Med. 24), who add half an example to each of the four outcomes:

        (b - c +- z sqrt(b + c - (b - c)^2 / n)) / n    of b + 1/2, c + 1/2, n + 2

    It has a width even if no answer changed. Of other scores it is the BCa bootstrap, or Student's
    t where fewer than 10 examples differ, for which a bootstrap may be one-sided. It is NaN where
    none differs, as then nothing tells how far the next example might.
    """
    count, (higher, lower) = len(differences), _changed(differences)
    if proportion:
        n, b, c = count + 2, higher + 0.5, lower + 0.5
        mean, half = (b - c) / n, Z_95 * math.sqrt(b + c - (b - c) ** 2 / n) / n
        return mean - half, mean + half
    if higher + lower >= FEW_CHANGED:
        return bootstrap_interval(differences)
    if count < 2 or not higher + lower:
        return math.nan, math.nan
    mean, error = mean_and_error(differences)
    half = student_t_95(count - 1.0) * error
    return mean - half, mean + half


def certain_sign(differences: tuple[float, ...], *, proportion: bool = False) -> int:
    """Return the sign of the mean of paired differences, 0 if chance explains it.

    The 95 % interval must exclude 0, and where fewer than 10 examples differ, a sign test must have
    p <= 0.05.
    """
    changed = _changed(differences)
    if sum(changed) < FEW_CHANGED and mcnemar(*changed) > 0.05:
        return 0
    low, high = difference_interval(differences, proportion=proportion)
    return int(low > 0) - int(high < 0)


def _changed(differences: Sequence[float]) -> tuple[int, int]:
    values = np.asarray(differences)
    return int((values > 0).sum()), int((values < 0).sum())


def paired_difference(score: HeldOutScore, other: HeldOutScore) -> PairedDifference | None:
    """Return a score less another; None where no example is known to be in both."""
    if score.metric != other.metric or len(score.values) != len(other.values):
        return None
    values = np.subtract(score.values, other.values, dtype=np.float64)
    difference = PairedDifference.of(values, proportion=score.proportion and other.proportion)
    return difference if difference.n else None


def is_clearly_better(score: HeldOutScore, other: HeldOutScore) -> bool:
    """Return whether a score is better than another by more than chance explains.

    See `certain_sign`. Without values of the examples, the intervals of the two scores must not
    overlap.
    """
    sign = 1.0 if score.higher_is_better else -1.0
    if difference := paired_difference(score, other):
        return sign * difference.certain_sign > 0
    worst = min(sign * end for end in confidence_interval(score))
    return worst > max(sign * end for end in confidence_interval(other))


def find_score_decline(scores: Sequence[HeldOutScore]) -> dict[str, Any] | None:
    """Return the decline from the best of the scores to the last one, if it is certain.

    Returns the `best` score, after how many updates it was reached (`since`), the last one (`now`),
    the 95 % interval of the loss (`low`, `high`), the corrected `p_value`, and the number of
    `examples` that both have.
    """
    best, count = best_score(scores[:-1]), len(scores)
    loss = paired_difference(best, scores[-1]) if best else None
    if best is None or loss is None:
        return None
    sign = 1.0 if best.higher_is_better else -1.0
    mean = sign * loss.mean
    p_value = count * (count - 1) ** 2 * loss.sign_test / 2
    is_small = mean < WORTH_TELLING * (signed_score(best) - signed_score(scores[0]))
    if is_small or not mean > 0 or sign * (loss.higher - loss.lower) <= 0 or p_value > ALPHA:
        return None
    low, high = sorted(sign * end for end in loss.interval)
    both = {"since": best.generation, "best": best.mean, "now": scores[-1].mean}
    return {**both, "low": low, "high": high, "p_value": p_value, "examples": loss.n}
