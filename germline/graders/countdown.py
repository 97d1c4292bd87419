r"""Grade a countdown answer: is the completion in the format, does its expression hit the target.

Parts, on `<think>` + completion (the prompt ends in `<think>`; only the completion is graded):

- `format`: 1.0 if the whole text is `<think>...</think>\n<answer>...</answer>`, where `...` is any
  text, followed by at most one line break; otherwise 0.1 for a think block plus 0.5 for an answer
  block.
- `answer`: 1.0 if the last `<answer>` holds an expression that uses every number exactly once and
  comes within 1e-5 of the target.

An expression is made of `0-9 + - * / ( )` and white space. Python parses it, and the tree is read
in exact fractions: nothing that a model writes is evaluated. A sign may precede a number (`-3 + 5`,
`2 * -3`): it belongs to the expression and not to the number, which is a sequence of digits.

Deviations from the field's checker, which calls Python's `eval`:

1. `**` and `//` are refused: the prompt allows `+ - * /`, and `9**9**9` hangs.
2. Any ASCII white space is allowed in the answer; the field scores a line break 0.
3. Negative and decimal targets work.
4. The last `<answer>` that is closed counts, even when an earlier one was left open.
5. Expressions of more than `MAX_SYMBOLS` symbols score 0.
"""

import ast
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import cast

from germline.example import Example

PRECISION = Fraction(1, 100_000)
"""An expression hits when it comes closer to the target than this."""

MAX_SYMBOLS = 256

TARGET = r"^-?[0-9]{1,15}(\.[0-9]{1,20})?$"
"""Pattern of a decimal number that can be a target."""

_SYMBOL = re.compile(r"[0-9]+|[-+*/()]")
_EXPRESSION = re.compile(r"[-+*/()0-9 \t\n\r\f\v]+")


def grade_countdown(text: str, example: Example) -> Mapping[str, float]:
    """Return the parts `format` and `answer` of a completion.

    Args:
        text: the completion alone.
        example: its facts hold `numbers` (whole numbers) and `target` (a decimal number as text).
    """
    numbers = cast("tuple[int, ...]", example.facts["numbers"])
    target = _target(cast(str, example.facts["target"]))
    answer = last_answer(text)
    value = None if answer is None else value_of(answer, numbers)
    right = value is not None and abs(value - target) < PRECISION
    return {"format": format_value("<think>" + text), "answer": float(right)}


def format_value(text: str) -> float:
    """Return 1.0 for the exact format, else 0.1 for a think block plus 0.5 for an answer block."""
    joint, close = "</think>\n<answer>", "</answer>"
    # Plain searches: a pattern with two lazy wildcards takes quadratic time on hostile text.
    start = text.find(joint)
    # The `$` of the field's pattern also matches before a line break at the end.
    answer = text[start + len(joint) :].removesuffix("\n") if start >= 0 else ""
    if text.startswith("<think>") and answer.endswith(close):
        return 1.0
    opened = text.find("<think>")
    think = opened >= 0 and text.find("</think>", opened) >= 0
    return 0.1 * think + 0.5 * (last_answer(text) is not None)


def last_answer(text: str) -> str | None:
    """Return what the last closed `<answer>` holds, or None without one."""
    start = text.rfind("<answer>", 0, max(0, text.rfind("</answer>")))
    if start < 0:
        return None
    body = start + len("<answer>")
    return text[body : text.find("</answer>", body)]


def answer_value(text: str, example: Example) -> str | None:
    """Return the value of a completion's last answer; None when it uses other numbers."""
    expression = last_answer(text)
    numbers = cast("tuple[int, ...]", example.facts["numbers"])
    value = None if expression is None else value_of(expression, numbers)
    return None if value is None else str(value)


def value_of(expression: str, numbers: tuple[int, ...]) -> Fraction | None:
    """Return the value of an expression that uses every number exactly once, else None."""
    if not _EXPRESSION.fullmatch(expression):
        return None
    symbols = _SYMBOL.findall(expression)
    # Compared as text: a leading zero is refused and a huge number is never converted.
    used = sorted(symbol for symbol in symbols if symbol.isdigit())
    if len(symbols) > MAX_SYMBOLS or used != sorted(map(str, numbers)):
        return None
    try:
        return _value(ast.parse(" ".join(expression.split()), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError):
        return None


@lru_cache(maxsize=4096)
def _target(text: str) -> Fraction:
    return Fraction(text)


def _value(node: ast.expr) -> Fraction:
    """Return the value of numbers, signs and + - * /; raise SyntaxError for anything else."""
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.UAdd(), operand=signed):
            return _value(signed)
        case ast.UnaryOp(op=ast.USub(), operand=signed):
            return -_value(signed)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _value(left), _value(right)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div() if b:
                    return a / b
    raise SyntaxError
