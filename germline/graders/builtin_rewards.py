"""The rewards that a task can name without Python, and the rubric made of several.

A reward is a function of (completion, example) that the decorator `reward` registers under a name;
nothing else is needed; `germline.config.row_tasks` names those below. `task.reward` accepts every
registered name, those of plugins included.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NoReturn, cast
from unicodedata import normalize

from germline import registry
from germline.example import Example
from germline.graders.numbers import last_number, single_number

RewardFunction = Callable[..., float]

MAX_LENGTH_DIFFERENCE = 2000
"""Larger differences count as this one. Published scores are normalized as (R + 2000) / 2001, so
2000 is the worst value there too, and a failed grading has a floor."""

OTHER_ANSWERS = "other_answers"
"""The fact of an example with its gold answers beside `Example.answer`, any of which is right."""


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
        others = cast("tuple[str, ...]", example.facts.get(OTHER_ANSWERS, ()))
        examples = (example, *map(partial(_with_answer, example), others))
        return {
            name: max(grade(text, one, **settings) for one in examples)
            for name, (grade, settings) in self.parts.items()
        }


def _with_answer(example: Example, answer: str) -> Example:
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
    """1 when the completion, stripped of white space, is the gold answer.

    Letters with accents are equal in both ways in which Unicode writes them (NFC and NFD).
    """
    return float(normalize("NFC", text.strip()) == normalize("NFC", example.answer))


def contains(text: str, example: Example) -> float:
    """1 when the gold answer is in the completion as whole words, else 0.

    The comparison is case-sensitive. `18` does not contain `8`, and `party` does not contain `art`.

    Known limit: a completion that lists all possible answers contains the right one. If models
    learn that, add `length` to the rubric, or use `exact`.
    """
    words = _words(normalize("NFC", example.answer.strip()))
    return float(words.search(normalize("NFC", text)) is not None)


@lru_cache(maxsize=4096)
def _words(answer: str) -> re.Pattern[str]:
    """Match an answer that is not part of a longer word; an empty answer never matches."""
    start = r"(?<!\w)" if answer[:1].isalnum() else ""
    end = r"(?!\w)" if answer[-1:].isalnum() else ""
    return re.compile(start + re.escape(answer) + end if answer else r"(?!)")


def _is_empty(answer: str) -> str:
    return "" if answer.strip() else "must not be empty for reward=exact, contains or regex"


def numeric(text: str, example: Example, tolerance: float = 0.0) -> float:
    """1 when the last number is that of the gold answer, within the tolerance, else 0.

    As in GSM8K, only the last number counts, and commas between thousands are dropped; the gold
    answer, such as `#### 1,200`, is read in the same way. How numbers, fractions and signs are
    read is in `germline.graders.numbers`. They are compared exactly, as fractions.
    """
    gold, number = _gold_number(example.answer), last_number(text)
    if gold is None or number is None:
        return 0.0
    return float(abs(number - gold) <= Fraction(tolerance))


_gold_number = lru_cache(maxsize=4096)(single_number)


def _is_no_number(answer: str, **_settings: object) -> str:
    return "must be one number for reward=numeric" if _gold_number(answer) is None else ""


def regex(text: str, example: Example, pattern: str | None = None) -> float:
    """1 when the pattern, or else the gold answer as a pattern, matches part of the completion."""
    own = str(example.facts["pattern"]) if pattern is None else pattern
    return float(re.search(own, text) is not None)


def _is_no_pattern(answer: str, pattern: str | None = None) -> str:
    if pattern is not None:
        return ""
    try:
        re.compile(answer)
    except re.error as error:
        return f"must be a regular expression for reward=regex without task.pattern ({error})"
    return _is_empty(answer)  # it would match any text


def json_value(text: str, example: Example) -> float:
    """1 when the completion is the JSON value of the gold answer, or any JSON without one; else 0.

    The whole completion must be JSON, apart from white space around it: no words before it, no code
    fence. Objects are equal whatever the order of their fields; numbers are compared by value (1
    equals 1.0, but not true). `NaN` and `Infinity` are not JSON. Values nested deeper than Python's
    parser allows score 0.
    """
    try:
        found = _parse_json(text)
        return float(not example.answer or _same_json(found, _json_answer(example.answer)))
    except (ValueError, RecursionError):
        return 0.0


def _parse_json(text: str) -> Any:
    return json.loads(normalize("NFC", text), parse_constant=_refuse_constant)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_json_answer = lru_cache(maxsize=4096)(_parse_json)


def _same_json(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _is_no_json(answer: str) -> str:
    try:
        _parse_json(answer)
    except (ValueError, RecursionError):
        return "must be JSON for reward=json"
    return ""


def length(text: str, example: Example) -> float:
    """Minus the difference in length to the gold answer, in characters.

    The reward of the conciseness experiment of Qiu et al. 2025 (arXiv 2509.24372): R =
    -|len(completion) - len(answer)|, of the completion alone.

    Deviation: differences beyond `MAX_LENGTH_DIFFERENCE` count as that.

    Known limit: any text of the right length earns the full reward.
    """
    return -float(min(abs(len(text) - len(example.answer)), MAX_LENGTH_DIFFERENCE))


def grade_length(text: str, example: Example) -> Mapping[str, float]:
    """Return the parts `length` and `length_difference`, its negative."""
    value = length(text, example)
    return {"length": value, "length_difference": -value}


def normalized_number(text: str) -> str | None:
    """Return the last number of a text in a normalized form, or None without one."""
    number = last_number(text)
    return None if number is None else str(number)


def normalize_answer(text: str) -> str | None:
    """Drop case, repeated white space and a full stop at the end; None for an empty text.

    Majority votes compare answers in this form if a task does not define its own.
    """
    return " ".join(normalize("NFC", text).split()).casefold().rstrip(".") or None


EXACT = Reward(exact, check_answer=_is_empty)
CONTAINS = Reward(contains, check_answer=_is_empty)
NUMERIC = Reward(numeric, settings=("tolerance",), check_answer=_is_no_number)
REGEX = Reward(regex, settings=("pattern",), check_answer=_is_no_pattern)
JSON = Reward(json_value, check_answer=_is_no_json)
LENGTH = Reward(length, lowest=-float(MAX_LENGTH_DIFFERENCE), highest=0.0)
