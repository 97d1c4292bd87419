"""Compare a completion with the gold answer: exact, contained, as a number, as JSON, by length."""

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn
from unicodedata import normalize

from germline.example import Example
from germline.graders.numbers import last_number, single_number

MAX_LENGTH_DIFFERENCE = 2000
"""Larger differences count as this one. Published scores are normalized as (R + 2000) / 2001, so
2000 is the worst value there too, and a failed grading has a floor."""


def grade_exact(text: str, example: Example) -> Mapping[str, float]:
    """Return the part `exact`: 1 if the completion, stripped of white space, equals the answer.

    Letters with accents are equal in both ways in which Unicode writes them (NFC and NFD).
    """
    return {"exact": float(normalize("NFC", text.strip()) == normalize("NFC", example.answer))}


def contains_reward(text: str, example: Example) -> float:
    """1 when the gold answer is in the completion as whole words, else 0.

    The comparison is case-sensitive. `18` does not contain `8`, and `party` does not contain `art`.

    Known limit: a completion that lists all possible answers contains the right one. If models
    learn that, add `length` to the rubric, or use `exact`.
    """
    words = _words(normalize("NFC", example.answer.strip()))
    return float(words.search(normalize("NFC", text)) is not None)


def numeric_reward(text: str, example: Example, tolerance: float = 0.0) -> float:
    """1 when the last number is that of the gold answer, within the tolerance, else 0.

    As in GSM8K, only the last number counts, and commas between thousands are dropped; the gold
    answer, such as `#### 1,200`, is read in the same way. How numbers, fractions and signs are
    read is in `germline.graders.numbers`. They are compared exactly, as fractions.
    """
    gold, number = answer_number(example.answer), last_number(text)
    if gold is None or number is None:
        return 0.0
    return float(abs(number - gold) <= Fraction(tolerance))


@lru_cache(maxsize=4096)
def answer_number(answer: str) -> Fraction | None:
    """Return the number of a gold answer; None without one, or where it is a list of numbers."""
    return single_number(answer)


def normalized_number(text: str) -> str | None:
    """Return the last number of a text in a normalized form, or None without one."""
    number = last_number(text)
    return None if number is None else str(number)


def json_reward(text: str, example: Example) -> float:
    """1 when the completion is the JSON value of the gold answer, or any JSON without one; else 0.

    The whole completion must be JSON, apart from white space around it: no words before it, no code
    fence. Objects are equal whatever the order of their fields; numbers are compared by value (1
    equals 1.0, but not true). `NaN` and `Infinity` are not JSON. Values nested deeper than Python's
    parser allows score 0.
    """
    try:
        found = parse_json(text)
        return float(not example.answer or _same_json(found, _json_answer(example.answer)))
    except (ValueError, RecursionError):
        return 0.0


def parse_json(text: str) -> Any:
    """Parse a JSON value, or raise ValueError or, where it is nested too deeply, RecursionError."""
    return json.loads(text, parse_constant=_refuse_constant)


def grade_length(text: str, example: Example) -> Mapping[str, float]:
    """Return the parts `length` (minus the difference) and `length_difference`, in characters.

    The reward of the conciseness experiment of Qiu et al. 2025 (arXiv 2509.24372): R =
    -|len(completion) - len(answer)|, in characters, of the completion alone, content ignored.

    Deviation: differences beyond `MAX_LENGTH_DIFFERENCE` count as that.

    Known limit: any text of the right length earns the full reward.
    """
    difference = float(min(abs(len(text) - len(example.answer)), MAX_LENGTH_DIFFERENCE))
    return {"length": -difference, "length_difference": difference}


def normalize_answer(text: str) -> str | None:
    """Drop case, repeated white space and a full stop at the end; None for an empty text.

    Majority votes compare answers in this form if a task does not define its own.
    """
    return " ".join(text.split()).casefold().rstrip(".") or None


@lru_cache(maxsize=4096)
def _words(answer: str) -> re.Pattern[str]:
    """Match an answer that is not part of a longer word; an empty answer never matches."""
    start = r"(?<!\w)" if answer[:1].isalnum() else ""
    end = r"(?!\w)" if answer[-1:].isalnum() else ""
    return re.compile(start + re.escape(answer) + end if answer else r"(?!)")


@lru_cache(maxsize=4096)
def _json_answer(text: str) -> Any:
    return parse_json(text)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _same_json(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)
