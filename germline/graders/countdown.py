"""Grade a countdown answer: the format of the completion, and whether its expression hits the target.

Parts, on `<think>` + completion (the prompt ends in `<think>`, and only the completion is graded):

- `format`: 1.0 if the whole is `<think>...</think>\\n<answer>...</answer>`, where `...` is any text;
  otherwise 0.1 for a think block plus 0.5 for an answer block.
- `answer`: 1.0 if the last `<answer>` holds an expression that uses every number exactly once and comes
  within 1e-5 of the target.

An expression is made of `0-9 + - * / ( )` and white space, and is read by the little parser below with
exact fractions: nothing a model writes is evaluated as code. Signs may lead (`-3 + 5`, `2 * -3`): they
are part of the expression, not of the number.

Deviations from the field's checker, which calls Python's `eval`:

1. `**` and `//` are refused: the prompt allows `+ - * /`, and `9**9**9` hangs.
2. Any ASCII white space may stand in the answer; the field scores a line break 0.
3. Negative and decimal targets work.
4. The last `<answer>` that is closed counts, even when an earlier one was left open.
5. Expressions of more than `MAX_SYMBOLS` symbols, or nested deeper than `MAX_DEPTH`, score 0.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import cast

from germline.types import Example

TOLERANCE = Fraction(1, 100_000)
MAX_SYMBOLS = 256
MAX_DEPTH = 32

_WHITE = " \t\n\r\f\v"
_SYMBOL = re.compile(r"[0-9]+|[-+*/()]")
_EXPRESSION = re.compile(rf"[-+*/()0-9{_WHITE}]+")
_TARGET = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,20})?")


def grade(text: str, example: Example) -> Mapping[str, float]:
    """Return the parts `format` and `answer` of a completion.

    Args:
        text: the completion alone.
        example: its facts hold `numbers` (whole numbers) and `target` (a decimal number as text).
    """
    numbers = cast("tuple[int, ...]", example.facts["numbers"])
    target = Fraction(str(example.facts["target"]))
    expression = last_answer(text)
    right = expression is not None and hits(expression, numbers, target)
    return {"format": format_value("<think>" + text), "answer": float(right)}


def is_target(text: str) -> bool:
    """Tell whether a text is a decimal number that can be a target."""
    return _TARGET.fullmatch(text) is not None


def format_value(text: str) -> float:
    """Return 1.0 for the exact format, else 0.1 for a think block plus 0.5 for an answer block."""
    joint, close = "</think>\n<answer>", "</answer>"
    # Plain searches: the equivalent pattern with two lazy wildcards takes quadratic time.
    start = text.find(joint)
    body = start + len(joint)
    if start >= 0 and text.startswith("<think>") and text[body:].endswith(close):
        return 1.0
    think = text.find("</think>", text.find("<think>")) >= 0
    return 0.1 * think + 0.5 * (last_answer(text) is not None)


def last_answer(text: str) -> str | None:
    """Return what the last closed `<answer>` holds, or None without one."""
    start = text.rfind("<answer>", 0, max(0, text.rfind("</answer>")))
    if start < 0:
        return None
    body = start + len("<answer>")
    return text[body : text.find("</answer>", body)]


def hits(expression: str, numbers: tuple[int, ...], target: Fraction) -> bool:
    """Tell whether an expression uses every number exactly once and reaches the target."""
    if not _EXPRESSION.fullmatch(expression):
        return False
    symbols = _symbols(expression)
    if symbols is None:
        return False
    # Compared as text: a leading zero is refused and a huge number is never converted.
    if sorted(s for s in symbols if s.isdecimal()) != sorted(map(str, numbers)):
        return False
    try:
        return abs(_Reader(symbols).value() - target) < TOLERANCE
    except (_NotAnExpressionError, ZeroDivisionError):
        return False


def _symbols(expression: str) -> list[str] | None:
    found: list[str] = []
    for match in _SYMBOL.finditer(expression):
        if len(found) == MAX_SYMBOLS:
            return None
        found.append(match.group())
    return found


class _NotAnExpressionError(Exception):
    """The symbols do not form an expression."""


class _Reader:
    """Recursive descent over symbols: sum = product {(+|-) product}, product = factor {(*|/) factor}."""

    def __init__(self, symbols: list[str]) -> None:
        self._symbols: Iterator[str] = iter(symbols)
        self._next = next(self._symbols, "")
        self._depth = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._next:
            raise _NotAnExpressionError
        return value

    def _take(self) -> str:
        taken, self._next = self._next, next(self._symbols, "")
        return taken

    def _sum(self) -> Fraction:
        value = self._product()
        while self._next in ("+", "-"):
            value = value + self._product() if self._take() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self._next in ("*", "/"):
            value = value * self._factor() if self._take() == "*" else value / self._factor()
        return value

    def _factor(self) -> Fraction:
        sign = 1
        while self._next in ("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return sign * self._atom()

    def _atom(self) -> Fraction:
        symbol = self._take()
        if symbol.isdecimal():
            return Fraction(int(symbol))
        if symbol != "(" or self._depth == MAX_DEPTH:
            raise _NotAnExpressionError
        self._depth += 1
        value = self._sum()
        self._depth -= 1
        if self._take() != ")":
            raise _NotAnExpressionError
        return value
