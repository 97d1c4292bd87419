"""The best held-out score of a run, and early stopping."""

import math
from collections.abc import Sequence

from germline.types import HeldOutScore


def best_score(scores: Sequence[HeldOutScore]) -> HeldOutScore | None:
    """Return the best held-out score of a run; None without any.

    Of equal scores, that with the highest mean reward is the best, as the metric may be one part of
    the reward; of equal rewards, the first.
    """
    known = [score for score in scores if math.isfinite(score.mean)]
    return max(known, key=rank, default=None)


def early_stop(scores: Sequence[HeldOutScore], patience: int | None) -> HeldOutScore | None:
    """Return the best score if `patience` later scores did not improve on it, else None."""
    best = best_score(scores)
    if patience is None or best is None:
        return None
    later = sum(score.generation > best.generation for score in scores)
    return best if later >= patience else None


def signed_score(score: HeldOutScore) -> float:
    """Return the metric so that higher is better: negated if it is a cost."""
    return score.mean if score.higher_is_better else -score.mean


def rank(score: HeldOutScore) -> tuple[float, float]:
    """Return what scores are compared by: the metric so that higher is better, then the reward."""
    return signed_score(score), score.reward if math.isfinite(score.reward) else -math.inf
