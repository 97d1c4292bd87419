"""Grade JSON: 1 if the completion is the JSON value of the gold answer, or any JSON without one.

The whole completion must be JSON, apart from white space around it: no words before it, no code
fence. Objects are equal whatever the order of their fields; numbers are compared by value (1 equals
1.0, but not true). `NaN` and `Infinity` are not JSON. Values nested deeper than Python's parser
allows score 0.
"""

import json
from functools import lru_cache
from typing import Any, NoReturn

from germline.example import Example


def json_reward(text: str, example: Example) -> float:
    """1 when the completion is the JSON value of the gold answer, else 0."""
    try:
        found = parse_json(text)
        return float(not example.answer or _same(found, _answer(example.answer)))
    except (ValueError, RecursionError):
        return 0.0


def parse_json(text: str) -> Any:
    """Parse a JSON value.

    Raises:
        ValueError: the text is not JSON, or has a number with more digits than Python parses.
        RecursionError: the value is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse)


@lru_cache(maxsize=4096)
def _answer(text: str) -> Any:
    return parse_json(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)
