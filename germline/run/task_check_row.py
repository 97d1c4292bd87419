"""One row of a check of a task: what was tried, and the verdict."""

from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True)
class TaskCheckRow:
    """One row of a check: what was tried, how often, the rewards it earned, and the verdict.

    Attributes:
        text: the whole of the hostile text that earns as much as a gold answer; None for any
            other row. The remark shows its beginning.
    """

    tried: str
    count: int
    rewards: tuple[float, ...]
    verdict: Verdict
    remark: str
    text: str | None = None


def warn_of_equal_rewards(rows: list[TaskCheckRow]) -> list[TaskCheckRow]:
    """Warn, in the last row, that all texts of all rows earned the same reward."""
    rewards = [reward for row in rows for reward in row.rewards]
    if len(rewards) < 2 or min(rewards) < max(rewards):
        return rows
    if rows[-1].verdict != "ok" or any(row.verdict == "wrong" for row in rows):
        return rows
    remark = (
        f"all {len(rewards)} texts that were tried earn {rewards[0]:g}, empty ones included: check "
        "that a better answer earns more, as a run learns from differences only"
    )
    return [*rows[:-1], replace(rows[-1], verdict="warning", remark=remark)]
