"""The rewards a task can name without Python, and the rubric made of some of them.

Each is a function of (completion, example) with a range; `BuiltinRubric` is the grader that
computes several as the parts of a rubric.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from germline.graders import (
    contains_match,
    exact_match,
    json_match,
    length_difference,
    numeric_match,
)
from germline.types import Example


@dataclass(frozen=True)
class BuiltinRubric:
    """A grader of named rewards; picklable, as it runs in worker processes.

    Attributes:
        names: rewards of `REWARDS`.
        pattern: what `regex` searches for; None searches for the example's own pattern.
        tolerance: of `numeric`.
    """

    names: tuple[str, ...]
    pattern: str | None = None
    tolerance: float = 0.0

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return every named reward."""
        return {name: REWARDS[name].value(self, text, example) for name in self.names}


@dataclass(frozen=True)
class BuiltinReward:
    """One built-in reward: what it computes, and between which values it lies."""

    value: Callable[[BuiltinRubric, str, Example], float]
    lowest: float = 0.0
    highest: float = 1.0

    def floor(self, weight: float) -> float:
        """Return the value that adds least to a weighted sum."""
        return self.highest if weight < 0 else self.lowest


def _regex(rubric: BuiltinRubric, text: str, example: Example) -> float:
    pattern = str(example.facts["pattern"]) if rubric.pattern is None else rubric.pattern
    return float(_compiled(pattern).search(text) is not None)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


REWARDS: dict[str, BuiltinReward] = {
    "exact": BuiltinReward(
        lambda _, text, example: exact_match.grade_exact(text, example)["exact"]
    ),
    "contains": BuiltinReward(
        lambda _, text, example: contains_match.contains_reward(text, example)
    ),
    "numeric": BuiltinReward(
        lambda own, text, example: numeric_match.numeric_reward(text, example, own.tolerance)
    ),
    "regex": BuiltinReward(_regex),
    "json": BuiltinReward(lambda _, text, example: json_match.json_reward(text, example)),
    "length": BuiltinReward(
        lambda _, text, example: length_difference.grade_length(text, example)["length"],
        lowest=-float(length_difference.LIMIT),
        highest=0.0,
    ),
}
