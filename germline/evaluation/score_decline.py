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

which is tested one-sided by Student's t, with degrees of freedom by Welch and Satterthwaite, turned
into a normal deviate by Wallace's formula (1959).

**Multiple tests.** With k scores there are k - 2 references, and a run is tested after every score.
A loss counts if

    (3)  p <= 0.01 / ((k - 2)^2 (k - 1))

These bounds times their k - 2 references sum to 0.01 over all k, so for a run whose scores differ
by chance alone the probability of a false alarm is below 1 %, however long the run is. A loss below
a tenth of the run's gain is not reported.

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
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np
from jaxtyping import Float64

from germline.evaluation.held_out import Z_95
from germline.record.best_generation import signed_score
from germline.types import HeldOutScore

Cause = Literal["hack", "overfit", "walk", "no signal", "unknown"]
Known = float | None

ALPHA = 0.01
"""Probability of a false alarm in a run whose score does not decline."""

BLOCK = 10
"""Generations per block of training fitness."""

WORTH_TELLING = 0.1
"""Share of the gain of a run that it must have lost before a decline is reported."""

NO_AGREEMENT = 0.05
"""Mean agreement of halves below which updates follow no signal."""

NEAR_THE_EDGE = 0.8
"""Share of the edge from which on the walk counts as the cause; the edge is known only roughly."""

MANY_EMPTY = 0.2
"""Rise of the share of empty texts that means reward hacking, if the fitness does not fall."""

GROWN = 1.1
"""Growth of sigma from which on the fitness of two generations is not compared."""


@dataclass(frozen=True)
class RunCurves:
    """The recorded curves of a run: held-out scores, and one value per generation of the others.

    Attributes:
        scores: held-out scores, in order.
        fitness: mean over the members.
        agreement: cosine of the updates of two halves of the examples.
        empty: share of completions without text.
        walk: random walk of the updates so far, in the unit of sigma.
        sigma: of the members.
        cost_weight: lambda, where the reward weighs a cost by it.
        edge: sigma at which random members break, if known.
    """

    scores: Sequence[HeldOutScore] = ()
    fitness: Sequence[Known] = ()
    agreement: Sequence[Known] = ()
    empty: Sequence[Known] = ()
    walk: Sequence[Known] = ()
    sigma: Sequence[Known] = ()
    cost_weight: Sequence[Known] = ()
    edge: float | None = None


@dataclass(frozen=True)
class ScoreDecline:
    """A decline of a run's score.

    Attributes:
        measure: the score that declined.
        since: number of updates after which it was best.
        best: its value then: of the metric, or of the fitness.
        now: its present value: mean of the last two scores, or of the last generations.
        loss: the difference, positive; `low` to `high` is its 95 % interval.
        low: lower end of the interval.
        high: upper end of the interval.
        chance: bound of the p-value, corrected for multiple tests.
        examples: number of examples over which scores were paired; 0: not paired.
        cause: the likely cause.
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


def find_score_decline(curves: RunCurves) -> ScoreDecline | None:
    """Return the decline of a run's score; None when there is none that is significant."""
    return _of_scores(curves) or _of_fitness(curves)


def _of_scores(curves: RunCurves) -> ScoreDecline | None:
    scores = [score for score in curves.scores if math.isfinite(signed_score(score))]
    if len(scores) < 3:
        return None
    good = np.array([signed_score(score) for score in scores])
    reference = int(np.argmax(good[:-2]))
    best, last = scores[reference], scores[-2:]
    fall = _Fall(good, reference, *paired_loss(best, last[0], last[1]))
    if not fall.counts:
        return None
    return ScoreDecline(
        measure="held-out score",
        since=best.generation,
        best=best.mean,
        now=(last[0].mean + last[1].mean) / 2,
        loss=fall.loss,
        low=fall.loss - Z_95 * fall.error,
        high=fall.loss + Z_95 * fall.error,
        chance=fall.chance,
        examples=shared_examples(best, *last),
        cause=_cause(curves, best.generation, scores=(best, *last)),
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
    fall = _Fall(good, reference, loss, error, BLOCK - 1)
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
        cause=_cause(curves, since),
    )


class _Fall:
    """The test of the last two of some scores against the best before them.

    Args:
        good: the scores, higher is better.
        reference: index of the best one.
        loss: difference between it and the mean of the last two.
        error: standard error of the loss over examples.
        dof: degrees of freedom of the error.
    """

    def __init__(
        self,
        good: Float64[np.ndarray, " scores"],
        reference: int,
        loss: float,
        error: float,
        dof: int,
    ) -> None:
        variance, free = _stray(good, reference)
        strayed = 0.75 * variance
        self.loss = loss
        self.error = math.sqrt(error**2 + strayed)
        spread = error**4 / max(1, dof) + strayed**2 / free
        together = self.error**4 / spread if 0 < spread < math.inf else max(1, dof)
        looks = (len(good) - 2) ** 2 * (len(good) - 1)
        self.chance = p_value(loss, self.error, float(together), looks)
        self._gained = float(good[reference] - good[0])

    @property
    def counts(self) -> bool:
        """Whether the loss is significant and large enough to be reported."""
        return self.chance <= ALPHA and self.loss >= WORTH_TELLING * self._gained


def _stray(good: Float64[np.ndarray, " scores"], reference: int) -> tuple[float, int]:
    """Return variance and degrees of freedom of the steps between scores: s^2 of equation (2).

    Before the reference only downward steps count, because upward steps may be the rise. After it
    only upward steps count, because downward steps may be the decline; without any of these, the
    deviations of the downward steps from their mean count. For scores that vary around a constant,
    upward and downward steps have the same size. Downward steps after the reference add degrees of
    freedom, because they could have been upward ones.
    """
    before, since = np.diff(good[: reference + 1]), np.diff(good[reference + 1 :])
    against = [*before[before < 0], *since[since > 0]]
    steps = np.array(against or (since - since.mean() if len(since) > 1 else since))
    return float(np.mean(steps**2)), len(before[before < 0]) + max(1, len(since) - 1)


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
    was, now = _mean(values[:since][-BLOCK:]), _mean(values[-BLOCK:])
    return was is not None and now is not None and bool(now > factor * was)


def _cause(curves: RunCurves, since: int, scores: Sequence[HeldOutScore] = ()) -> Cause:
    """Return the most certain cause.

    Args:
        curves: of the run.
        since: number of updates after which the score was best.
        scores: the best one and the last two, if held-out scores declined.
    """
    rise = _rise(curves.fitness, since)
    if scores and _is_hacked(curves, since, scores, rise):
        return "hack"
    if scores and rise > 0:
        return "overfit"
    walk = next((one for one in reversed(curves.walk) if one is not None), None)
    if walk is not None and curves.edge is not None and walk >= NEAR_THE_EDGE * curves.edge:
        return "walk"
    agreed = [one for one in curves.agreement[since:] if one is not None]
    if len(agreed) >= BLOCK and sum(agreed) / len(agreed) < NO_AGREEMENT:
        return "no signal"
    return "unknown"


def _rise(values: Sequence[Known], since: int) -> float:
    """Return the rise of the last values over those at the best score, less 2 standard errors."""
    was = [value for value in values[:since][-BLOCK:] if value is not None]
    now = [value for value in values[since:][-BLOCK:] if value is not None]
    if min(len(was), len(now)) < 2:
        return -math.inf
    error = math.hypot(*(float(np.std(some, ddof=1)) / math.sqrt(len(some)) for some in (was, now)))
    difference = float(np.mean(now) - np.mean(was))
    return difference - 2 * error


def _is_hacked(curves: RunCurves, since: int, scores: Sequence[HeldOutScore], rise: float) -> bool:
    """Return whether the reward rises while the metric or the texts get worse."""
    best, *last = (score.reward for score in scores)
    if sum(last) / len(last) > best and scores[0].higher_is_better is not None:
        return True
    was, now = _mean(curves.empty[:since][-BLOCK:]), _mean(curves.empty[-BLOCK:])
    return rise > 0 and was is not None and now is not None and now > was + MANY_EMPTY


def _mean(values: Sequence[Known]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
