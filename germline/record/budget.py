"""What a run has spent, in units that all methods share, and the limit of `budget` it has reached.

`generations.jsonl` holds the sums up to each generation under `budget`; `run.budget_meter` counts.
"""

from collections.abc import Mapping
from typing import Any

from germline.config import Budget

Spent = Mapping[str, Any]
"""The field `budget` of a row of generations.jsonl; empty before the first generation."""

MINUTE_S = 60.0


def amounts(spent: Spent) -> dict[str, float]:
    """Return what was spent by the names of the settings of `budget`."""
    counts = {name: float(spent.get(name, 0)) for name in ("rollouts", "tokens", "forward_tokens")}
    return {
        **counts,
        "flops": spent.get("forward_flops", 0.0) + spent.get("backward_flops", 0.0),
        "cpu_minutes": spent.get("cpu_s", 0.0) / MINUTE_S,
        "minutes": spent.get("wall_s", 0.0) / MINUTE_S,
    }


def reached_limit(budget: Budget, spent: Spent) -> str | None:
    """Return the first limit that is reached, as a setting with its value; None without one."""
    for name, amount in amounts(spent).items():
        limit = getattr(budget, name, None)
        if limit is not None and amount >= limit:
            return f"budget.{name}={limit:.12g}"
    return None
