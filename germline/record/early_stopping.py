"""The best held-out score of a run, and the settings that end a run early.

`generations.jsonl` holds what was spent up to each generation under `budget`, in units that all
methods share; `run.training` counts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from germline.config import Budget
from germline.errors import count_of
from germline.types import HeldOutScore

Spent = Mapping[str, Any]
"""The field `budget` of a row of generations.jsonl; empty before the first generation."""

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a run ended before its last generation.

    Attributes:
        setting: that ended it, with its value.
        reason: continues a sentence: `the run stopped, as REASON`.
        override: a value of the setting with which the run trains on.
    """

    setting: str
    reason: str
    override: str


def mark_forgotten(
    scores: Sequence[HeldOutScore], max_drops: Mapping[str, float]
) -> list[HeldOutScore]:
    """Return the scores of a run with the names in `retained` that lost more than `max_drops`."""

    def forgot(score: HeldOutScore) -> Iterator[str]:
        for name, one in score.retained.items():
            before = scores[0].retained.get(name)
            drop = signed_score(before) - signed_score(one) if before else 0.0
            if drop > max_drops.get(name, math.inf):
                yield name

    return [replace(score, forgot=tuple(forgot(score))) for score in scores]


def exceeded_drop(scores: Sequence[HeldOutScore], max_drops: Mapping[str, float]) -> Ending | None:
    """Return the first `max_drop` that a score exceeds; None without one."""
    for score in mark_forgotten(scores, max_drops):
        for name in score.forgot:
            setting = f"retained.{name}.max_drop"
            reason = "more was lost than that allows"
            return Ending(f"{setting}={max_drops[name]:g}", reason, f"{setting}=null")
    return None


def best_score(scores: Sequence[HeldOutScore]) -> HeldOutScore | None:
    """Return the best held-out score of a run, of those that forgot nothing; None without any.

    Of equal scores, that with the highest mean reward is the best, as the metric may be one part of
    the reward; of equal rewards, the first.
    """
    known = [score for score in scores if math.isfinite(score.mean) and not score.forgot]
    return max(known, key=rank, default=None)


def early_stop(scores: Sequence[HeldOutScore], patience: int | None) -> Ending | None:
    """Return an ending if `patience` scores did not improve on the best one before them."""
    best = best_score(scores)
    if patience is None or best is None:
        return None
    if sum(score.generation > best.generation for score in scores) < patience:
        return None
    reason = f"no held-out score was better than that after {count_of(best.generation, 'updates')}"
    return Ending(f"held_out.patience={patience}", reason, f"held_out.patience={2 * patience}")


def signed_score(score: HeldOutScore) -> float:
    """Return the metric so that higher is better: negated if it is a cost."""
    return score.mean if score.higher_is_better else -score.mean


def rank(score: HeldOutScore) -> tuple[float, float]:
    """Return what scores are compared by: the metric so that higher is better, then the reward."""
    return signed_score(score), score.reward if math.isfinite(score.reward) else -math.inf


def amounts(spent: Spent) -> dict[str, float]:
    """Return what was spent by the names of the settings of `budget`."""
    counts = {name: float(spent.get(name, 0)) for name in ("rollouts", "tokens", "forward_tokens")}
    return {
        **counts,
        "flops": spent.get("forward_flops", 0.0) + spent.get("backward_flops", 0.0),
        "cpu_minutes": spent.get("cpu_s", 0.0) / MINUTE_S,
        "minutes": spent.get("wall_s", 0.0) / MINUTE_S,
    }


def reached_limit(budget: Budget, spent: Spent) -> Ending | None:
    """Return the first limit that is reached; None without one."""
    for name, amount in amounts(spent).items():
        limit = getattr(budget, name, None)
        if limit is not None and amount >= limit:
            more = f"budget.{name}={2 * amount:.12g}"
            return Ending(f"budget.{name}={limit:.12g}", "the budget is spent", more)
    return None
