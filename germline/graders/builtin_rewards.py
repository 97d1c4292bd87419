"""The rewards that a task can name without Python, and the rubric made of several.

A reward is a function of (completion, example) that the decorator `reward` registers under a name;
nothing else is needed; `germline.config.row_tasks` names those below. `task.reward` accepts every
registered name, those of plugins included.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from germline import registry
from germline.example import Example
from germline.graders.answer_match import (
    MAX_LENGTH_DIFFERENCE,
    answer_number,
    contains_reward,
    grade_exact,
    grade_length,
    json_reward,
    numeric_reward,
    parse_json,
)

RewardFunction = Callable[..., float]


@dataclass(frozen=True)
class Reward:
    """One registered reward; see `reward`."""

    grade: RewardFunction
    lowest: float = 0.0
    highest: float = 1.0
    settings: tuple[str, ...] = ()
    check_answer: Callable[..., str] = lambda _answer, **_settings: ""

    def floor(self, weight: float) -> float:
        """Return the value that adds least to a weighted sum."""
        return self.highest if weight < 0 else self.lowest

    def chosen(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of some settings that the reward takes."""
        return {name: settings[name] for name in self.settings if name in settings}


@dataclass(frozen=True)
class BuiltinRubric:
    """A grader of built-in rewards; picklable, because it runs in worker processes."""

    parts: Mapping[str, tuple[RewardFunction, Mapping[str, Any]]]
    """Name of a reward -> its function, and the settings it is called with."""

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return the value of every reward by name: of several gold answers, the largest."""
        examples = (example, *map(partial(with_answer, example), other_answers(example)))
        return {
            name: max(grade(text, one, **settings) for one in examples)
            for name, (grade, settings) in self.parts.items()
        }


OTHER_ANSWERS = "other_answers"
"""The fact of an example with its gold answers beside `Example.answer`, any of which is right."""


def other_answers(example: Example) -> tuple[str, ...]:
    """Return the gold answers of an example beside its first one."""
    return cast("tuple[str, ...]", example.facts.get(OTHER_ANSWERS, ()))


def with_answer(example: Example, answer: str) -> Example:
    """Return an example with another gold answer."""
    facts = {"pattern": answer} if "pattern" in example.facts else {}
    return replace(example, answer=answer, facts={**example.facts, **facts})


def reward(
    name: str,
    *,
    lowest: float = 0.0,
    highest: float = 1.0,
    settings: tuple[str, ...] = (),
    check_answer: Callable[..., str] = lambda _answer, **_settings: "",
) -> Callable[[RewardFunction], RewardFunction]:
    """Register the decorated function as a reward: `task.reward` can name it.

    The function must be at the top level of its module, as worker processes import it by name.

    Args:
        name: as a config spells it.
        lowest: the least value that the function returns.
        highest: the largest value that it returns.
        settings: settings of a `jsonl` task that it takes as keyword arguments.
        check_answer: (gold answer) -> why the reward cannot use it, or an empty text.
    """

    def add(grade: RewardFunction) -> RewardFunction:
        details = Reward(grade, lowest, highest, settings, check_answer)
        return registry.register("reward", details, name)(grade)

    return add


def rewards() -> dict[str, Reward]:
    """Return all rewards by name, in the order in which they were registered."""
    known = registry.entries("reward")
    return {name: registry.implementation("reward", name) for name in known}


def make_rubric(names: Sequence[str], **settings: Any) -> BuiltinRubric:
    """Make the grader of some rewards, which take what they need of the settings."""
    known = rewards()
    return BuiltinRubric(
        {name: (known[name].grade, known[name].chosen(settings)) for name in names}
    )


def exact(text: str, example: Example) -> float:
    """1 when the completion, stripped of white space, is the gold answer."""
    return grade_exact(text, example)["exact"]


def regex(text: str, example: Example, pattern: str | None = None) -> float:
    """1 when the pattern, or else the gold answer as a pattern, matches part of the completion."""
    own = str(example.facts["pattern"]) if pattern is None else pattern
    return float(re.search(own, text) is not None)


def length(text: str, example: Example) -> float:
    """Minus the difference in length to the gold answer, in characters."""
    return grade_length(text, example)["length"]


def _is_empty(answer: str) -> str:
    return "" if answer.strip() else "must not be empty for reward=exact or contains"


def _is_no_number(answer: str, **_settings: object) -> str:
    return "must be one number for reward=numeric" if answer_number(answer) is None else ""


def _is_no_pattern(answer: str, pattern: str | None = None) -> str:
    if pattern is None:
        try:
            re.compile(answer)
        except re.error as error:
            return f"must be a regular expression for reward=regex without task.pattern ({error})"
    return ""


def _is_no_json(answer: str) -> str:
    try:
        parse_json(answer)
    except (ValueError, RecursionError):
        return "must be JSON for reward=json"
    return ""


EXACT = Reward(exact, check_answer=_is_empty)
CONTAINS = Reward(contains_reward, check_answer=_is_empty)
NUMERIC = Reward(numeric_reward, settings=("tolerance",), check_answer=_is_no_number)
REGEX = Reward(regex, settings=("pattern",), check_answer=_is_no_pattern)
JSON = Reward(json_reward, check_answer=_is_no_json)
LENGTH = Reward(length, lowest=-float(MAX_LENGTH_DIFFERENCE), highest=0.0)
