"""The difference of two held-out scores on the same examples: is one better, has one declined?

An example that is hard for both scores adds nothing to the difference, so its interval is narrower
than those of the two scores. It is that of the paired bootstrap, which assumes many examples that
differ. Where few do, it is too narrow:
if 5 of 35 examples improve and no other changes, it excludes 0, but an exact sign test (two-sided;
McNemar's for right and wrong answers) has p = 0.06. So where fewer than 10 examples differ, this
test decides too.

A score has declined if its last value is below its best one. Of the n examples of both,

    (1)  D_e = v_best,e - v_last,e

is tested one-sided by Student's t. Two more D of +-max |D| are added, so that few examples never
look certain (Agresti and Min 2005). A run is tested after every score, and the best of the k scores
is chosen, so that many pairs of scores are tested. A decline counts if

    (2)  p <= 0.01 / (k (k - 1)^2)

These bounds, times the k - 1 references of a last score, sum to 0.01 over all k: for scores that
differ by chance alone, the probability of a false alarm is below 1 %, however long the run is. A
loss below a fifth of what the run had gained is not reported.

Limit: the test is over examples. Weights that really vary from score to score do decline, for as
long as the next update does not undo it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from jaxtyping import Float64

from germline.evaluation.held_out import confidence_interval, mean_and_error
from germline.evaluation.statistics import Z_95, Interval, bootstrap_interval, mcnemar
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

    @property
    def sign_test(self) -> float:
        """The p value of an exact two-sided sign test (McNemar's) on the examples that differ."""
        return mcnemar(self.higher, self.lower)

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the mean by the paired bootstrap; NaN for one example."""
        return _paired_interval(self.differences)


@lru_cache  # a report asks several times for the same interval
def _paired_interval(differences: tuple[float, ...]) -> Interval:
    return bootstrap_interval(differences)


def paired_difference(score: HeldOutScore, other: HeldOutScore) -> PairedDifference | None:
    """Return a score less another; None where no example is known to be in both."""
    values = paired_values(score.values, other.values)
    if score.metric != other.metric or not len(values):
        return None
    higher, lower = int((values > 0).sum()), int((values < 0).sum())
    return PairedDifference(
        *mean_and_error(values),
        len(values),
        higher,
        lower,
        proportion=score.proportion and other.proportion,
        differences=tuple(values.tolist()),
    )


def paired_values(one: Sequence[float], other: Sequence[float]) -> Float64[np.ndarray, " examples"]:
    """Return the first values less the other ones, of each example that both know."""
    if len(one) != len(other):
        return np.empty(0)
    differences = np.subtract(one, other, dtype=np.float64)
    return differences[np.isfinite(differences)]


def is_clearly_better(score: HeldOutScore, other: HeldOutScore) -> bool:
    """Return whether a score is better than another by more than chance explains.

    The 95 % interval of their paired difference must exclude 0, and where fewer than 10 examples
    differ, a sign test must have p <= 0.05. Without values of the examples, the intervals of the
    two scores must not overlap.
    """
    sign = 1.0 if score.higher_is_better else -1.0
    if difference := paired_difference(score, other):
        if difference.higher + difference.lower < FEW_CHANGED and difference.sign_test > 0.05:
            return False
        return min(sign * end for end in difference.interval) > 0
    worst = min(sign * end for end in confidence_interval(score))
    return worst > max(sign * end for end in confidence_interval(other))


@dataclass(frozen=True, slots=True)
class ScoreDecline:
    """A decline of a score.

    Attributes:
        since: number of updates after which the score was best.
        low: lower end of the 95 % interval of the loss over the examples that both have.
        high: upper end.
        p_value: bound of the p-value, corrected for the number of tests.
        examples: number of examples that both scores have.
    """

    since: int
    best: float
    now: float
    low: float
    high: float
    p_value: float
    examples: int


def find_score_decline(scores: Sequence[HeldOutScore]) -> ScoreDecline | None:
    """Return the decline from the best of the scores to the last one, if it is certain."""
    best = best_score(scores[:-1])
    if best is None:
        return None
    last, count = scores[-1], len(scores)
    sign = 1.0 if best.higher_is_better else -1.0
    losses = sign * paired_values(best.values, last.values)
    p_value = count * (count - 1) ** 2 * p_of_mean(losses)
    if not p_value <= ALPHA:
        return None
    loss, half = float(losses.mean()), Z_95 * _padded_error(losses)
    if loss < WORTH_TELLING * (signed_score(best) - signed_score(scores[0])):
        return None
    interval = loss - half, loss + half
    return ScoreDecline(best.generation, best.mean, last.mean, *interval, p_value, len(losses))


def p_of_mean(differences: Float64[np.ndarray, " examples"]) -> float:
    """Return the one-sided p-value of a mean above 0; 1 for fewer than two values."""
    from scipy.special import stdtr  # takes half a second, and only a run with scores needs it

    if len(differences) < 2 or not differences.mean() > 0:
        return 1.0
    t = differences.mean() / _padded_error(differences)
    return float(stdtr(len(differences) - 1, -t))


def _padded_error(differences: Float64[np.ndarray, " examples"]) -> float:
    """Return the standard error of a mean, with the two values that equation (1) adds."""
    largest = np.abs(differences).max()
    padded = np.append(differences, [largest, -largest])
    return float(padded.std(ddof=1) / np.sqrt(len(padded)))
