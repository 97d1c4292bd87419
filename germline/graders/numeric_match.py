"""Grade by number: 1 if the last number of the completion equals that of the gold answer.

As in GSM8K, only the last number counts, and commas between thousands are dropped. The last number
of the gold answer is used too, so an answer such as `#### 1,200` needs no change. Numbers are
compared exactly, as fractions. Numbers with more than `LONGEST` characters, or with exponents of
more than 3 digits, are ignored.
"""

import re
from collections import deque
from fractions import Fraction
from functools import lru_cache

from germline.example import Example

LONGEST = 64

# A minus is `-` or U+2212; after a letter, a digit or a bracket it is a subtraction (3-5) and not
# part of a number.
_NUMBER = re.compile(
    r"(?:(?<![\w.)\]])[-−])?(?:[0-9][0-9,]*(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
)
_EXPONENT = re.compile(r"[eE][-+]?[0-9]{4,}")


def numeric_reward(text: str, example: Example, tolerance: float = 0.0) -> float:
    """1 when the last number is that of the gold answer, within the tolerance, else 0."""
    gold, number = answer_number(example.answer), last_number(text)
    if gold is None or number is None:
        return 0.0
    return float(abs(number - gold) <= Fraction(tolerance))


@lru_cache(maxsize=4096)
def answer_number(answer: str) -> Fraction | None:
    """Return the number of a gold answer, or None without one."""
    return last_number(answer)


def normalized_number(text: str) -> str | None:
    """Return the last number of a text in a normalized form, or None without one."""
    number = last_number(text)
    return None if number is None else str(number)


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text, or None without one."""
    last = deque(_NUMBER.finditer(text), maxlen=1)
    number = last[0].group() if last else ""
    if not number or len(number) > LONGEST or _EXPONENT.search(number):
        return None
    return Fraction(number.replace(",", "").replace("−", "-"))
