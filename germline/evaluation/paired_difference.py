"""The difference of two held-out scores on the same examples, with its 95 % interval.

An example that is hard for both scores adds nothing to the difference, so the interval is narrower
than those of the two scores.

The interval assumes many examples that differ. Where few do, it is too narrow: if 5 of 35 examples
improve and no other changes, it excludes 0, but an exact sign test (two-sided; McNemar's for right
and wrong answers) has p = 0.06. So where fewer than 10 examples differ, this test decides too.
"""

import math
from dataclasses import dataclass

from germline.evaluation.held_out import Z_95, confidence_interval, mean_and_error
from germline.types import HeldOutScore

FEW_CHANGED = 10
"""Fewer examples that differ are not enough for the interval alone."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean over examples of one score less another.

    Attributes:
        standard_error: NaN for one example.
        n: number of examples that both scores have.
        higher: number of these on which the first score is higher than the other one.
        lower: number of these on which it is lower.
    """

    mean: float
    standard_error: float
    n: int
    higher: int
    lower: int

    @property
    def sign_test(self) -> float:
        """The p value of an exact two-sided sign test on the examples that differ."""
        changed, fewer = self.higher + self.lower, min(self.higher, self.lower)
        tail = sum(math.comb(changed, count) for count in range(fewer + 1))
        return min(1.0, 2 * tail / 2**changed)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval: 1.96 standard errors to each side."""
        half = Z_95 * self.standard_error
        return self.mean - half, self.mean + half


def paired_difference(score: HeldOutScore, other: HeldOutScore) -> PairedDifference | None:
    """Return a score less another; None where no example is known to be in both."""
    if len(score.values) != len(other.values) or score.metric != other.metric:
        return None
    pairs = zip(score.values, other.values, strict=True)
    known = [a - b for a, b in pairs if not math.isnan(a - b)]
    if not known:
        return None
    higher, lower = sum(one > 0 for one in known), sum(one < 0 for one in known)
    return PairedDifference(*mean_and_error(known), len(known), higher, lower)


def is_clearly_better(score: HeldOutScore, other: HeldOutScore) -> bool:
    """Return whether a score is better than another by more than chance explains.

    The 95 % interval of their paired difference must exclude 0, and where fewer than 10 examples
    differ, a sign test must have p <= 0.05. Without values of the examples, the intervals of the
    two scores must not overlap.
    """
    sign = 1.0 if score.higher_is_better in (True, None) else -1.0
    if difference := paired_difference(score, other):
        if difference.higher + difference.lower < FEW_CHANGED and difference.sign_test > 0.05:
            return False
        return min(sign * end for end in difference.interval) > 0
    worst = min(sign * end for end in confidence_interval(score))
    return worst > max(sign * end for end in confidence_interval(other))
