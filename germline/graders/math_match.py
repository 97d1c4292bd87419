r"""Grade mathematics twice: a strict reading of the answer, and a lenient one.

Both readings take a single answer out of a completion and compare it with the gold answer: as text,
as numbers, and else as expressions by `math-verify` (1/2, 0.5 and \frac{1}{2} are equal).

- strict, `hashes` (GSM8K): the number after the last `####`; as `strict-match` of lm-eval, which
  takes the first.
- strict, `boxed` (MATH): what the last \boxed{...} holds.
- lenient: the strict answer; without one, what follows `####`, the last \boxed{...}, what follows
  the last "answer is" (the value of `2 + 3 = 5` is 5), the last formula between dollars, or the
  last number, in this order. Amounts of money are no formulas: `$9 * 2 = $18`.
  U+2212 is a minus.

Only LaTeX is parsed: plain expressions would go through `eval` inside the library. Text that costs
too much to evaluate (towers of powers, factorials of large numbers, sums, deep brackets) is
compared as text and number alone, and the time limit of the grader process holds for the rest.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from germline.errors import GermlineError
from germline.example import Example

try:
    from math_verify import LatexExtractionConfig, parse, verify
except ImportError:
    raise GermlineError(
        "task.kind=gsm8k and task.kind=math need the library `math-verify`: "
        "pip install 'germline[math]'"
    ) from None

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeout is off

Marker = Literal["hashes", "boxed"]

LONGEST_ANSWER = 300
"""Characters of an answer that is compared; a longer one is wrong."""

LONGEST_TAIL = 4000
"""Characters at the end of a completion in which a lenient answer is looked for."""

DEEPEST = 12
"""Levels of brackets in an answer that is parsed."""

_NUMBER = re.compile(r"(?:(?<![\w.)\]])-\$|[-+])?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)")
_EQUATION = re.compile(r"(?:[^A-Za-z=\\]*=\s*)+(?=\S)")
_MEASURED = re.compile(
    _NUMBER.pattern + r"\s*(?:"
    r"(?:[kcdm]?m|ft|in|mi|yd|feet|inches|yards|meters|miles)\s?(?:\^?\{?[23]\}?|[²³])"
    r"|[A-Za-z]+\s?/\s?(?:h|hr|hour|s|sec|second|min|minute|day|week|month|year|m|km|mile)"
    r")\.?$"
)
_HASHES = "####"
_STRICT_NUMBER = re.compile(r"\s*\$?(-?[0-9.,]*[0-9])")
_BOXES = (r"\boxed{", r"\fbox{")
_ANSWER_IS = re.compile(r"answer(?:\s+is|\s*:)\s*:?", re.IGNORECASE)
_FORMULA = re.compile(r"\$((?!\s)[^$]{1,300}(?<!\s)|\s[^$]{1,300}\s)\$(?!\s*[0-9.])")
_DROPPED = re.compile(r"\\[!,;: ]|\\left|\\right|[\s$]|\\%|%|\\\$|\.$")
_UNIT = re.compile(r"(?:\\ |\s)+[A-Za-z. ]+$|(?:\\ |\s)*\\(?:text|mathrm)\{[^{}]*\}$")
_COSTLY = re.compile(
    r"\^\s*\{?\s*[-+(]*[0-9]{4}"  # a large exponent
    r"|\^\s*(?:\{[^{}]*|\S\s*)\^"  # a power of a power
    r"|[0-9]{4,}\s*!|!\s*!|[0-9]{40}"
    r"|\\(?:i*int|o[i]nt|sum|prod|lim|bigcup|bigcap)"
    r"|\\[dt]?binom\s*\{?[0-9]{4}"
)


@dataclass(frozen=True)
class MathGrader:
    """Grades a completion by the fact `gold` of its example.

    Attributes:
        marker: where the strict reading looks for the answer.
    """

    marker: Marker

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return the parts `strict` and `lenient`."""
        gold = str(example.facts["gold"])
        strict = strict_answer(text, self.marker)
        answer = lenient_answer(text) if strict is None else strict
        is_right = answer is not None and is_equal(answer, gold)
        return {"strict": float(is_right and strict is not None), "lenient": float(is_right)}


def strict_answer(text: str, marker: Marker) -> str | None:
    """Return the answer in the place that the prompt asks for; None without one."""
    if marker == "boxed":
        return boxed_answer(text)
    start = text.rfind(_HASHES)
    found = _STRICT_NUMBER.match(text, start + len(_HASHES)) if start >= 0 else None
    return found.group(1) if found else None


def lenient_answer(text: str) -> str | None:
    """Return the answer in the first place of the module's list that has one; None without any."""
    text = text[-LONGEST_TAIL:].replace("\u2212", "-")
    _, hashes, after = text.rpartition(_HASHES)
    if hashes and after.strip():
        return _first_number(after.strip().splitlines()[0])
    if (boxed := boxed_answer(text)) is not None:
        return boxed
    for found in reversed(list(_ANSWER_IS.finditer(text))):
        line = text[found.end() :].strip().partition("\n")[0].strip("* ")
        if line:
            line = _EQUATION.sub("", line, count=1) if _EQUATION.match(line) else line
            return formula.group(1) if (formula := _FORMULA.search(line)) else _first_number(line)
    if formulas := _FORMULA.findall(text):
        return str(formulas[-1])
    numbers = _NUMBER.findall(text)
    return str(numbers[-1]) if numbers else None


def boxed_answer(text: str) -> str | None:
    r"""Return what the last \boxed{...} holds; None without one that is closed."""
    start = max((text.rfind(box) + len(box) for box in _BOXES if box in text), default=-1)
    if start < 0:
        return None
    depth = 1
    for place in range(start, min(len(text), start + LONGEST_ANSWER + 1)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return text[start:place]
    return None


def is_equal(answer: str, gold: str) -> bool:
    """Tell whether an answer is the gold answer: as text, as a number, or as an expression."""
    if len(answer) > LONGEST_ANSWER:
        return False
    mine, golden = _plain(answer), _plain(gold)
    if mine == golden:
        return bool(mine)
    numbers = _as_number(_plain(_UNIT.sub("", answer.strip()))), _as_number(golden)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if not mine or _COSTLY.search(answer) or not _is_nested_well(answer):
        return False
    # Their own timeout uses the alarm that the grader process needs.
    parsed = _parsed(answer)
    return bool(parsed) and bool(verify(_parsed_gold(gold), parsed, timeout_seconds=None))


def _is_nested_well(text: str) -> bool:
    """Tell whether brackets close, whatever their kind (an interval is `[0, 1)`), and not deep."""
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if not 0 <= depth <= DEEPEST:
            return False
    return not depth


def _first_number(text: str) -> str:
    """Return the first number of a text with a unit, or the text where it has no number."""
    found = _NUMBER.search(text)
    is_number = _MEASURED.match(text) or not re.search(r"[\\^/]", text)
    return found.group() if found and is_number else text


def _plain(text: str) -> str:
    return _DROPPED.sub("", text.strip()).replace("{,}", ",")


def _as_number(text: str) -> Fraction | None:
    if not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


@lru_cache(maxsize=4096)
def _parsed_gold(gold: str) -> list[Any]:
    return _parsed(gold)


def _parsed(answer: str) -> list[Any]:
    """Parse LaTeX; empty where it is none."""
    expressions: list[Any] = parse(
        rf"\boxed{{{answer}}}", [LatexExtractionConfig()], parsing_timeout=None
    )
    return expressions


is_equal("x^2", r"x \cdot x")  # The first comparison takes a second, which is part of the start.
