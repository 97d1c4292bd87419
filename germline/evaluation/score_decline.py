"""Detect that a held-out score has declined: the best score against the last one.

Both are scores of the same n examples. The loss is the mean over examples of

    (1)  D_e = v_best,e - v_last,e

and is tested one-sided by Student's t. Two more D of +-max |D| are added, so that few examples
never look certain (Agresti and Min 2005).

A run is tested after every score, and the best of the k scores is chosen, so that many pairs of
scores are tested. A decline counts if

    (2)  p <= 0.01 / (k (k - 1)^2)

These bounds, times the k - 1 references of a last score, sum to 0.01 over all k: for scores that
differ by chance alone, the probability of a false alarm is below 1 %, however long the run is. A
loss below a fifth of what the run had gained is not reported.

Limit: the test is over examples. Weights that really vary from score to score do decline, for as
long as the next update does not undo it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from germline.evaluation.held_out import Z_95
from germline.record.best_generation import best_score, signed_score
from germline.types import HeldOutScore

ALPHA = 0.01
"""Probability of a false alarm in a run whose score does not decline."""

WORTH_TELLING = 0.2
"""Share of the gain of a run that it must have lost before a decline is reported."""


@dataclass(frozen=True, slots=True)
class ScoreDecline:
    """A decline of a score.

    Attributes:
        since: number of updates after which the score was best.
        best: its value then.
        now: its last value.
        loss: the difference over the examples that both have, positive.
        low: lower end of its 95 % interval.
        high: upper end.
        p_value: bound of the p-value, corrected for the number of tests.
        examples: number of examples that both scores have.
    """

    since: int
    best: float
    now: float
    loss: float
    low: float
    high: float
    p_value: float
    examples: int


def find_score_decline(scores: Sequence[HeldOutScore]) -> ScoreDecline | None:
    """Return the decline from the best score to the last one; None where none is certain.

    Args:
        scores: of one metric, in order.
    """
    best = best_score(scores[:-1])
    if best is None:
        return None
    last, count = scores[-1], len(scores)
    sign = 1.0 if best.higher_is_better in (True, None) else -1.0
    differences = sign * paired_values(best, last)
    p_value = count * (count - 1) ** 2 * p_of_mean(differences)
    if not p_value <= ALPHA:
        return None
    loss, half = float(differences.mean()), Z_95 * _padded_error(differences)
    if loss < WORTH_TELLING * (signed_score(best) - signed_score(scores[0])):
        return None
    return ScoreDecline(
        best.generation,
        best.mean,
        last.mean,
        loss,
        loss - half,
        loss + half,
        p_value,
        len(differences),
    )


def paired_values(one: HeldOutScore, other: HeldOutScore) -> np.ndarray:
    """Return the first score less the other one, of each example that both have."""
    if len(one.values) != len(other.values):
        return np.empty(0)
    differences = np.subtract(one.values, other.values, dtype=np.float64)
    return differences[np.isfinite(differences)]


def p_of_mean(differences: np.ndarray) -> float:
    """Return the one-sided p-value of a mean above 0; 1 for fewer than two values."""
    from scipy.special import stdtr  # takes half a second, and only a run with scores needs it

    if len(differences) < 2 or not differences.mean() > 0:
        return 1.0
    t = differences.mean() / _padded_error(differences)
    return float(stdtr(len(differences) - 1, -t))


def _padded_error(differences: np.ndarray) -> float:
    """Return the standard error of a mean, with the two values that equation (1) adds."""
    largest = np.abs(differences).max()
    padded = np.append(differences, [largest, -largest])
    return float(padded.std(ddof=1) / np.sqrt(len(padded)))
