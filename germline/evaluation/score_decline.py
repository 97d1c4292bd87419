"""Detect that the score of a run declines: since when, how certain, and the likely cause.

The input is the curves of one run after any of its generations.

**Held-out scores.** The reference is the best score before the last two; the loss is how far the
mean of the last two is below it. Over the n examples that were scored in all three,

    (1)  D_e = v_ref,e - (v_last,e + v_before,e) / 2        loss = mean D,   se = std D / sqrt(n)

with two more D of +-max |D|, so that few examples never look certain (Agresti and Min 2005). Where
the values of examples were not recorded, se is computed from the standard errors of the three
scores as if they were independent. They are not, because the examples are the same, so se is too
large.

Scores also vary because the weights do. With the mean square s^2 of the steps from one score to the
next that are part of neither the rise nor the decline,

    (2)  t = loss / sqrt(se^2 + 3/4 s^2)

where s^2 / 4 replaces 3/4 s^2 if the reference is the score before training, whose weights have
had no update yet. Steps of 0 count half: they are upward steps as often as downward ones. Without
that, a few steps during a collapse would outweigh all scores after it, which stay at 0. t is tested
one-sided by Student's t, with degrees of freedom by Welch and Satterthwaite, turned
into a normal deviate by Wallace's formula (1959).

**Multiple tests.** With k scores there are k - 2 references, and a run is tested after every score.
A loss counts if

    (3)  p <= 0.01 / ((k - 2)^2 (k - 1))

These bounds times their k - 2 references sum to 0.01 over all k, so for a run whose scores differ
by chance alone the probability of a false alarm is below 1 %, however long the run is. A loss below
a tenth of the run's gain is not reported.

**Blocks of scores.** The same test is applied to means over blocks of w = 2, 4, 8, ... scores. They
vary less, so a collapse is found in frequent scores, too. The first score is a block of its own.
s^2 is at least that of single scores divided by w, and equal to it where blocks only fall. Single
scores have half of the probability of a false alarm and blocks 1 / (2 w) of it; a run is tested w
times at each number of blocks, so the factor in (3) is multiplied by 2 w^2. Blocks report only a
loss of half of the gain and, of a proportion, half of its value, because the means of scores that
depend on those before them vary more than (2) expects.

**Training fitness** is tested in the same way: its means over blocks of 10 generations are the
scores, and their errors are computed from the steps between neighboring generations. It counts only
if held-out scores do not contradict it, and if neither sigma nor the weight of a cost (lambda) has
grown, because members with a larger sigma, and costs with a larger weight, have a lower fitness.

Limit: early in a run, s^2 is computed from a few steps. If scores oscillate by much more than the
error over examples, the probability of a false alarm is above 1 % (measured: 3 % in 20 scores that
oscillate by 2 errors, 15 % by 5).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean
from typing import Literal

import numpy as np
from jaxtyping import Float64

from germline.evaluation.held_out import Z_95
from germline.evaluation.score_decline_cause import (
    BLOCK,
    Cause,
    Known,
    RunCurves,
    likely_cause,
    mean_of_known,
)
from germline.record.best_generation import signed_score
from germline.types import HeldOutScore

ALPHA = 0.01
"""Probability of a false alarm in a run whose score does not decline."""

WORTH_TELLING = 0.1
"""Share of the gain of a run that it must have lost before a decline is reported."""

GROWN = 1.1
"""Growth of sigma from which on the fitness of two generations is not compared."""


@dataclass(frozen=True)
class ScoreDecline:
    """A decline of a run's score.

    Attributes:
        measure: the score that declined.
        since: number of updates after which it was best.
        best: its value then: of the metric, or of the fitness.
        now: its present value: mean of the last scores, or of the last generations.
        loss: the difference, positive; `low` to `high` is its 95 % interval.
        low: lower end of the interval.
        high: upper end of the interval.
        chance: bound of the p-value, corrected for multiple tests.
        examples: number of examples over which scores were paired; 0: not paired.
        cause: the likely cause.
        averaged: of how many scores `best` and `now` are means; 0: of training fitness.
    """

    measure: Literal["held-out score", "training fitness"]
    since: int
    best: float
    now: float
    loss: float
    low: float
    high: float
    chance: float
    examples: int = 0
    cause: Cause = field(default="unknown")
    averaged: tuple[int, int] = (0, 0)


def find_score_decline(curves: RunCurves) -> ScoreDecline | None:
    """Return the decline of a run's score; None when there is none that is significant."""
    return _of_scores(curves) or _of_fitness(curves)


def _of_scores(curves: RunCurves) -> ScoreDecline | None:
    """Return the most certain decline over all block lengths."""
    scores = [score for score in curves.scores if math.isfinite(signed_score(score))]
    found, width = [], 1
    while len(scores) > 2 * width:
        found.append(_of_blocks(curves, scores, width))
        width *= 2
    return min((one for one in found if one), key=lambda one: one.chance, default=None)


def _of_blocks(
    curves: RunCurves, scores: Sequence[HeldOutScore], width: int
) -> ScoreDecline | None:
    """Test the means over blocks of `width` scores; the first score is a block of its own."""
    whole = [scores[end - width : end] for end in range(len(scores), width, -width)]
    blocks = [scores[:1], *reversed(whole)]
    means = [_mean_score(block) for block in blocks]
    good = np.array([signed_score(mean) for mean in means])
    reference = int(np.argmax(good[:-2]))
    best = max(blocks[reference], key=signed_score)
    most = 1.0 if best.proportion else math.inf  # A proportion cannot change by more.
    compared = (means[reference], *means[-2:])
    is_start = reference == 0 and best.generation == 0  # Its weights have had no update yet.
    variance, dof = _stray(np.array([signed_score(one) for one in scores]), scores.index(best))
    fall = _Fall(
        good,
        reference,
        paired_loss(*compared),
        varies=0.25 if is_start else 0.75,
        single=(variance / width, dof),
        looks=2 * width**2 * _looks(len(good)),
    )
    if not fall.counts or (width > 1 and not fall.is_collapse(best)):
        return None
    return ScoreDecline(
        measure="held-out score",
        since=best.generation,
        best=compared[0].mean,
        now=fmean([one.mean for one in compared[1:]]),
        loss=fall.loss,
        low=max(fall.loss - Z_95 * fall.error, -most),
        high=min(fall.loss + Z_95 * fall.error, most),
        chance=fall.chance,
        examples=shared_examples(*compared),
        cause=likely_cause(curves, best.generation, scores=compared),
        averaged=(len(blocks[reference]), 2 * width),
    )


def _mean_score(block: Sequence[HeldOutScore]) -> HeldOutScore:
    """Return the mean of scores of the same examples; its error is at most the mean of theirs."""
    if len(block) == 1:
        return block[0]
    is_paired = len({len(score.values) for score in block}) == 1
    values = zip(*(score.values for score in block), strict=True) if is_paired else ()
    return replace(
        block[-1],
        mean=fmean([score.mean for score in block]),
        standard_error=fmean([score.standard_error for score in block]),
        reward=fmean([score.reward for score in block]),
        values=tuple(fmean(of_example) for of_example in values),
    )


def _of_fitness(curves: RunCurves) -> ScoreDecline | None:
    known = [(at, one) for at, one in enumerate(curves.fitness) if one is not None]
    count = len(known) // BLOCK
    if count < 3:
        return None
    blocks = np.array([one for _, one in known[: count * BLOCK]]).reshape(count, BLOCK)
    good = blocks.mean(axis=1)
    reference = int(np.argmax(good[:-2]))
    errors = [_error(blocks[place]) for place in (reference, -2, -1)]
    loss = float(good[reference] - good[-2:].mean())
    error = math.hypot(errors[0], errors[1] / 2, errors[2] / 2)
    fall = _Fall(good, reference, (loss, error, BLOCK - 1))
    since = known[(reference + 1) * BLOCK - 1][0] + 1
    if not fall.counts or _contradicted(curves.scores, since):
        return None
    if _grew(curves.sigma, since, GROWN) or _grew(curves.cost_weight, since, 1.0):
        return None
    return ScoreDecline(
        measure="training fitness",
        since=since,
        best=float(good[reference]),
        now=float(good[-2:].mean()),
        loss=loss,
        low=loss - Z_95 * fall.error,
        high=loss + Z_95 * fall.error,
        chance=fall.chance,
        cause=likely_cause(curves, since),
    )


class _Fall:
    """The test of the last two of some scores against the best before them.

    Args:
        good: the scores, higher is better.
        reference: index of the best one.
        over_examples: difference between it and the mean of the last two, with its standard error
            over examples and the degrees of freedom of the error.
        varies: variance of the loss from variation of the weights, in units of s^2.
        single: s^2 and its degrees of freedom as single scores let it expect, if `good` are means.
        looks: number of tests for which the p-value is corrected; None: by the number of scores.
    """

    def __init__(
        self,
        good: Float64[np.ndarray, " scores"],
        reference: int,
        over_examples: tuple[float, float, int],
        varies: float = 0.75,
        single: tuple[float, int] | None = None,
        looks: int | None = None,
    ) -> None:
        loss, error, dof = over_examples
        variance, free = _stray(good, reference)
        if single and (single[0] > variance or not _against(good, reference).size):
            variance, free = single
        strayed = varies * variance
        self.loss = loss
        self.error = math.sqrt(error**2 + strayed)
        spread = error**4 / max(1, dof) + strayed**2 / free
        together = self.error**4 / spread if 0 < spread < math.inf else max(1, dof)
        self.chance = p_value(loss, self.error, float(together), looks or _looks(len(good)))
        self._gained = float(good[reference] - good[0])

    @property
    def counts(self) -> bool:
        """Whether the loss is significant and large enough to be reported."""
        return self.chance <= ALPHA and self.loss >= WORTH_TELLING * self._gained

    def is_collapse(self, best: HeldOutScore) -> bool:
        """Whether half of the gain is lost, and half of the score if it is a proportion."""
        is_share = best.proportion and best.higher_is_better is True
        return 2 * self.loss >= max(self._gained, best.mean if is_share else 0.0)


def _looks(count: int) -> int:
    """Return for how many tests a p-value is corrected: equation (3)."""
    return (count - 2) ** 2 * (count - 1)


def _stray(good: Float64[np.ndarray, " scores"], reference: int) -> tuple[float, int]:
    """Return variance and degrees of freedom of the steps between scores: s^2 of equation (2).

    Before the reference only downward steps count, because upward steps may be the rise. After it
    only upward steps count, because downward steps may be the decline; without any of these, the
    deviations of the downward steps from their mean count. For scores that vary around a constant,
    upward and downward steps have the same size. Downward steps after the reference add degrees of
    freedom, because they could have been upward ones. Steps of 0 count half.
    """
    before, since = np.diff(good[: reference + 1]), np.diff(good[reference + 1 :])
    against = _against(good, reference)
    free = len(before[before < 0]) + max(1, len(since) - 1)
    if against.size:
        return float(np.sum(against**2) / np.sum(np.where(against, 1, 0.5))), free
    return float(np.mean((since - since.mean() if len(since) > 1 else since) ** 2)), free


def _against(good: Float64[np.ndarray, " scores"], reference: int) -> Float64[np.ndarray, " steps"]:
    """Return the steps that are part of neither the rise nor the decline, those of 0 included."""
    before, since = np.diff(good[: reference + 1]), np.diff(good[reference + 1 :])
    return np.concatenate([before[before <= 0], since[since >= 0]])


def paired_loss(
    best: HeldOutScore, before: HeldOutScore, last: HeldOutScore
) -> tuple[float, float, int]:
    """Return loss, standard error and degrees of freedom: equation (1), or without pairs."""
    if not (examples := shared_examples(best, before, last)):
        errors = [
            one.standard_error if math.isfinite(one.standard_error) else math.inf
            for one in (best, before, last)
        ]
        loss = signed_score(best) - (signed_score(before) + signed_score(last)) / 2
        return loss, math.hypot(errors[0], (errors[1] + errors[2]) / 2), last.n - 1
    differences = _differences(best, before, last)
    largest = float(np.abs(differences).max())
    padded = np.append(differences, [largest, -largest])
    error = float(padded.std(ddof=1) / math.sqrt(len(padded)))
    return float(differences.mean()), error, examples - 1


def shared_examples(best: HeldOutScore, before: HeldOutScore, last: HeldOutScore) -> int:
    """Return on how many examples all three were scored; 0 if fewer than two, or unknown."""
    if best.higher_is_better is None:  # then the reward is compared
        return 0
    if not best.values or len({len(one.values) for one in (best, before, last)}) > 1:
        return 0
    count = len(_differences(best, before, last))
    return count if count > 1 else 0


def _differences(
    best: HeldOutScore, before: HeldOutScore, last: HeldOutScore
) -> Float64[np.ndarray, " examples"]:
    """Return the loss of each example that has all three values."""
    was, then, now = (np.asarray(one.values, np.float64) for one in (best, before, last))
    differences = (was - (then + now) / 2) * (1.0 if best.higher_is_better else -1.0)
    return differences[np.isfinite(differences)]


def _error(block: Float64[np.ndarray, " block"]) -> float:
    """Return the standard error of a block's mean; a slope within the block is not noise."""
    return math.sqrt(float(np.mean(np.diff(block) ** 2)) / 2 / len(block))


def p_value(loss: float, error: float, dof: float, looks: int) -> float:
    """Return a bound of the p-value of a loss, corrected for the number of tests."""
    if not loss > 0 or not math.isfinite(error):
        return 1.0
    if error == 0:
        return 0.0
    t = loss / error
    z = (8 * dof + 1) / (8 * dof + 3) * math.sqrt(dof * math.log1p(t * t / dof))
    return min(1.0, looks * NormalDist().cdf(-z))


def _contradicted(scores: Sequence[HeldOutScore], since: int) -> bool:
    """Return whether held-out scores are as good as before, so the center has not declined."""
    before = [signed_score(score) for score in scores if score.generation <= since]
    after = [signed_score(score) for score in scores if score.generation > since]
    return len(after) > 1 and bool(before) and sum(after[-2:]) / 2 >= max(before)


def _grew(values: Sequence[Known], since: int, factor: float) -> bool:
    was, now = mean_of_known(values[:since][-BLOCK:]), mean_of_known(values[-BLOCK:])
    return was is not None and now is not None and bool(now > factor * was)
