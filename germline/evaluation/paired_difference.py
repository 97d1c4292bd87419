"""The difference of two held-out scores on the same examples, with its 95 % interval.

An example that is hard for both scores adds nothing to the difference, so the interval is narrower
than those of the two scores.
"""

import math
from dataclasses import dataclass

from germline.evaluation.held_out import Z_95, confidence_interval, mean_and_error
from germline.types import HeldOutScore


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean over examples of one score less another.

    Attributes:
        standard_error: NaN for one example.
        n: number of examples that both scores have.
    """

    mean: float
    standard_error: float
    n: int

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
    return PairedDifference(*mean_and_error(known), len(known)) if known else None


def is_clearly_better(score: HeldOutScore, other: HeldOutScore) -> bool:
    """Return whether a score is better than another by more than chance explains.

    The 95 % interval of their paired difference must exclude 0. Without values of the examples, the
    intervals of the two scores must not overlap.
    """
    sign = 1.0 if score.higher_is_better in (True, None) else -1.0
    if difference := paired_difference(score, other):
        return min(sign * end for end in difference.interval) > 0
    worst = min(sign * end for end in confidence_interval(score))
    return worst > max(sign * end for end in confidence_interval(other))
