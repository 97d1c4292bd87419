"""The best of the held-out scores of a run, and whether a run stopped early for it."""

import math
from collections.abc import Sequence

from germline.types import HeldOutScore


def best_score(scores: Sequence[HeldOutScore]) -> HeldOutScore | None:
    """Return the best of a run's held-out scores, the first of equals; None without any.

    Where an older germline did not record which way the metric is good, the reward decides, which
    is always better when it is higher.
    """
    known = [one for one in scores if math.isfinite(one.mean)]
    return max(known, key=signed_score, default=None)


def early_stop(scores: Sequence[HeldOutScore], patience: int | None) -> HeldOutScore | None:
    """Return the best score once `patience` later scores did not improve on it; None before that.

    Args:
        scores: held-out scores of a run, in the order of its generations.
        patience: `held_out.patience`; None never stops a run.
    """
    best = best_score(scores)
    if patience is None or best is None:
        return None
    later = sum(one.generation > best.generation for one in scores)
    return best if later >= patience else None


def signed_score(score: HeldOutScore) -> float:
    """Return what is higher the better a score is: the metric, or where it is a cost, less it."""
    if score.higher_is_better is None:
        return score.reward if math.isfinite(score.reward) else score.mean
    return score.mean if score.higher_is_better else -score.mean
