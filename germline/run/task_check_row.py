"""One row of a check of a task: what was tried, and the verdict."""

from dataclasses import dataclass
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
