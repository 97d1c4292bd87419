"""Detect that the reward and a held-out scorer disagree: the reward rises while the score falls.

A model that is trained on a reward model or a judge first gets better for every judge, and then
only for its own (Gao, Schulman and Hilton 2023, arXiv 2210.10760). Both are measured on the same
held-out completions. The reference is the best score by the scorer before the last two; two tests
over the same examples, Student's t of the mean of the last two less the reference, one-sided, must
both reject:

- the score has not fallen, at p <= 0.01 / ((k - 2)^2 (k - 1)) for k scores: as in `score_decline`,
  that sums to 0.01 over all references and all times at which a run is tested;
- the reward has not risen, at p <= 0.05.

So a warning is false in less than 1 % of runs. The tests compare the weights of these three updates
over examples. Unlike those of `score_decline`, they leave open whether the next update undoes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from germline.evaluation.held_out import Z_95, score_of_values
from germline.evaluation.score_decline import ALPHA, p_value, paired_loss, shared_examples
from germline.record.best_generation import best_score
from germline.record.metrics_rows import scores_by_scorer
from germline.types import HeldOutScore

RISE_ALPHA = 0.05


@dataclass(frozen=True)
class ScoreChange:
    """How a mean over examples changed.

    Attributes:
        before: at the reference.
        now: mean of the last two.
        by: amount of the change, positive in the direction that is tested.
        low: lower end of its 95 % interval.
        high: upper end.
        chance: p-value, corrected for multiple tests.
    """

    before: float
    now: float
    by: float
    low: float
    high: float
    chance: float


@dataclass(frozen=True)
class ScoreDivergence:
    """A held-out scorer that disagrees with the reward.

    Attributes:
        scorer: its name.
        since: number of updates at the reference.
        examples: number of examples over which scores were paired; 0: not paired.
        fall: of its score.
        rise: of the reward.
    """

    scorer: str
    since: int
    examples: int
    fall: ScoreChange
    rise: ScoreChange


def find_divergences(scores: Sequence[HeldOutScore]) -> list[ScoreDivergence]:
    """Return the scorers that disagree with the reward.

    Args:
        scores: held-out scores of a run, in order.
    """
    found = (_divergence(scores, judged) for judged in scores_by_scorer(scores).values())
    return [one for one in found if one is not None]


def _divergence(
    scores: Sequence[HeldOutScore], judged: Sequence[HeldOutScore]
) -> ScoreDivergence | None:
    best = best_score(judged[:-2])
    if best is None:
        return None
    before, last = judged[-2:]
    fall = _change(best, before, last, looks=(len(judged) - 2) ** 2 * (len(judged) - 1))
    rewards = {one.generation: _negated_reward(one) for one in scores}
    rise = _change(*(rewards[one.generation] for one in (best, before, last)), looks=1)
    if not (fall.chance <= ALPHA and rise.chance <= RISE_ALPHA):
        return None
    # The rise was tested as a loss of the negated reward.
    rise = ScoreChange(-rise.before, -rise.now, rise.by, rise.low, rise.high, rise.chance)
    examples = shared_examples(best, before, last)
    return ScoreDivergence(best.metric, best.generation, examples, fall, rise)


def _negated_reward(score: HeldOutScore) -> HeldOutScore:
    values = [-reward for reward in score.rewards]
    return score_of_values(score.generation, "reward", values, higher_is_better=True)


def _change(
    best: HeldOutScore, before: HeldOutScore, last: HeldOutScore, *, looks: int
) -> ScoreChange:
    """Test whether the last two are worse than the best; NaN values never are."""
    loss, error, dof = paired_loss(best, before, last)
    half = Z_95 * error
    now = (before.mean + last.mean) / 2
    return ScoreChange(
        best.mean, now, loss, loss - half, loss + half, p_value(loss, error, float(dof), looks)
    )
