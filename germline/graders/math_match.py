r"""Grade mathematics twice: a strict reading of the answer, and a lenient one.

Both readings take a single answer out of a completion and compare it with the gold answer: as text,
as numbers, and else as expressions by `math-verify` (1/2, 0.5 and \frac{1}{2} are equal).

- strict, `hashes` (GSM8K): the number after the last `####`; as `strict-match` of lm-eval, which
  takes the first.
- strict, `boxed` (MATH): what the last \boxed{...} holds.
- lenient: the strict answer; without one, what follows `####`, the last \boxed{...}, what follows
  the last "answer is" (the value of `2 + 3 = 5` is 5), the last formula between dollars, or the
  last number, in this order. Amounts of money are no formulas: `$9 * 2 = $18`.

How numbers, thousands and signs are read is in `germline.graders.numbers`. `3,5` is a list, which
`math-verify` compares.

Only LaTeX is parsed: plain expressions would go through `eval` inside the library. Text that costs
too much to evaluate (towers of powers, factorials of large numbers, sums, deep brackets) is
compared as text and number alone, and the time limit of the grader process holds for the rest.
"""

import cmath
import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal
from unicodedata import normalize

from germline.errors import GermlineError
from germline.example import Example
from germline.graders.numbers import (
    NUMBER,
    SIGN,
    UNSIGNED,
    parse_number,
    with_plain_signs,
    without_thousands,
)

try:
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Expr, Symbol
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

_EQUATION = re.compile(r"(?:[^A-Za-z=\\]*=\s*)+(?=\S)")
_MEASURE = (
    r"(?:(?:[kcdm]?m|ft|in|mi|yd|feet|inches|yards|meters|miles)\s?(?:\^?\{?[23]\}?|[²³])"
    r"|[A-Za-z]+\s?/\s?(?:h|hr|hour|s|sec|second|min|minute|day|week|month|year|m|km|mile))"
)
_MEASURED = re.compile(rf"{NUMBER.pattern}\s*{_MEASURE}\.?$")
_HASHES = "####"
_PART = rf"{UNSIGNED}(?:\s*/\s*(?>{UNSIGNED})(?!\s*/))?"
_AMOUNT = rf"{SIGN}(?:[0-9]+\s+(?=[0-9]+\s*/))?{_PART}"
# What stands between several numbers, so that none of them is the answer: `5, 6`, `5 to 6`, `5-6`.
_BETWEEN = (
    r"(?:[ \t]{0,3}(?:[,;|:&/-]|\.{2,3}|(?<=[ \t])\(?(?:and|or|to)\b)[ \t]{0,3}){1,2}"
    r"|[ \t]{1,3}(?![0-9]+\s*/)"
)
_NUMBERS = re.compile(rf"{_AMOUNT}(?:(?:{_BETWEEN}){_AMOUNT})*")
_NUMBER_OR_LIST = re.compile(rf"{_AMOUNT}(?:,{_PART})*")  # of a text, where commas part sentences
_SEPARATOR = re.compile(rf"(?<=[0-9])(?:{_BETWEEN})(?={_AMOUNT})")
_RANGE = re.compile(rf"{UNSIGNED}(?:[:-]{UNSIGNED})+")  # or a ratio or a date, and no difference
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_ARGUMENT = re.compile(  # of a box without braces
    r"\\[dt]?frac\s*(?:\{[^{}]*\}|\w)\s*(?:\{[^{}]*\}|\w)|\\[A-Za-z]+(?:\s*\{[^{}]*\})*"
    rf"|{NUMBER.pattern}|[^\s{{}}$\\]"
)
_ANSWER_IS = re.compile(r"answer\**(?:\s+is|\s*:)\s*:?", re.IGNORECASE)
_MARKUP = re.compile(r"(?:```\w*\n|[\s*_`:>])+")  # a code fence, bold, a quotation
_DISPLAYED = r"\$\$(.{1,300}?)\$\$|\\\[(.{1,300}?)\\\]|\\\((.{1,300}?)\\\)"
_FORMULA = re.compile(
    _DISPLAYED + r"|\$((?!\s)[^$]{1,300}(?<!\s)|\s[^$]{1,300}\s)\$(?!\s*[0-9.])", re.DOTALL
)
_DROPPED = re.compile(
    r"(?:\\[!,;: ]|\\left|\\right|[\s$°]|\^\{?\\circ\}?|\\%|%|\\\$)+|\.$"
    r"|^(?:\s*(?:=|≈|\\approx(?![A-Za-z])))+"
)
_APART = re.compile(r"(?<!_)[0-9.] [0-9.]")  # the base of a logarithm is no number beside one
# After a number; a letter that is no unit is a variable: `3 x` is not 3.
_UNIT = re.compile(
    rf"(?:\\ |\s)+(?:{_MEASURE}|[A-Za-z. ]*[A-Za-z]{{2}}[A-Za-z. ]*|[mgshlLVAWNJKCF])\.?$"
    r"|(?:\\ |\s)*\\(?:text|mathrm)\{[^{}]*\}(?:\^\{?[23]\}?)?$"
)
_MEASURED_IN = re.compile(  # a symbol after one value: `m + 2s` has variables
    r"(?:[^a-z+=*]|\\[a-z]+)*[0-9}](?:\\?\s)*(?:\\(?:text|mathrm)\{\s*)?"
    r"([kcdmn]?[mgl]|ft|in|yd|mi|h|min|s)[\s{}^]*([23]?)[\s}.]*"
)
_EQUALS = re.compile(r"(?<![<>!:=])=(?![<>=])")
_NAME = re.compile(  # of a value: `x`, `S_{10}`, `f(2)`, `\text{Area}`, `(x, y)`
    r"(?=[^A-Za-z]*[A-Za-z])(?:[A-Za-z\\{}|'\s]|_(?:\{[^{}]*\}|\w)|(?<=[A-Za-z'])\([^()]*\)"
    r"|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))+"
)
_LATEX = {
    "²": "^{2}",
    "³": "^{3}",
    "∞": r"\infty ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "×": r"\times ",
    "∅": r"\emptyset ",
    r"\varnothing": r"\emptyset ",
    r"\langle": "(",
    r"\rangle": ")",
}
_SYMBOL = re.compile("|".join(map(re.escape, _LATEX)))
_ROOT = re.compile(r"(?:√|\\sqrt(?=\())\s*(?:\(([^()]*)\)|([0-9.]+|[A-Za-z]))")
_COSTLY = re.compile(
    r"\^\s*\{?\s*[-+(]*[0-9]{4}"  # a large exponent
    r"|\^\s*(?:\{[^{}]*|\S\s*)\^"  # a power of a power
    r"|[0-9]{4,}\s*!|!\s*!|[0-9]{40}"
    r"|\\(?:i*int|o[i]nt|sum|prod|lim|bigcup|bigcap)"
    r"|\\[dt]?binom\s*\{?[0-9]{4}"
)


@dataclass(frozen=True)
class MathGrader:
    """Grades a completion by the fact `gold` of its example; the strict reading has a marker."""

    marker: Marker

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return the parts `strict` and `lenient`; of several gold answers, any one is right."""
        gold = example.facts["gold"]
        golds = gold if isinstance(gold, tuple) else (gold,)
        strict = strict_answer(text, self.marker)
        answer = lenient_answer(text) if strict is None else strict
        is_right = answer is not None and any(is_equal(answer, str(one)) for one in golds)
        return {"strict": float(is_right and strict is not None), "lenient": float(is_right)}


def strict_answer(text: str, marker: Marker) -> str | None:
    """Return the answer in the place that the prompt asks for; None without one."""
    if marker == "boxed":
        return boxed_answer(text)
    _, hashes, after = text.rpartition(_HASHES)
    if not hashes:
        return None
    after = after[:LONGEST_ANSWER].lstrip()
    number = with_plain_signs(f"={after}")  # after it, a sign may have a space
    found = _NUMBERS.match(number, 1)
    return _listed(found) if found else None


def lenient_answer(text: str) -> str | None:
    """Return the answer in the first place of the module's list that has one; None without any."""
    text = with_plain_signs(text[-LONGEST_TAIL:])
    _, hashes, after = text.rpartition(_HASHES)
    if hashes and after.strip():
        return _first_number(after.strip().splitlines()[0])
    if (boxed := boxed_answer(text)) is not None:
        return boxed
    for found in reversed(list(_ANSWER_IS.finditer(text))):
        if stated := _stated(text[found.end() :]):
            return stated
    if formulas := list(_FORMULA.finditer(text)):
        return _inside(formulas[-1])
    last = deque(_NUMBER_OR_LIST.finditer(text), maxlen=1)
    return last[0].group() if last else None


def boxed_answer(text: str) -> str | None:
    r"""Return what the last \boxed holds, braces or not; None without one that is closed."""
    box = next(iter(deque(_BOX.finditer(text), maxlen=1)), None)
    if box is None:
        return None
    start = box.end()
    if text[start : start + 1] != "{":
        argument = _ARGUMENT.match(text, start)
        return argument.group() if argument else None
    depth = 0
    for place in range(start, min(len(text), start + LONGEST_ANSWER + 2)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return text[start + 1 : place]
    return None


def is_equal(answer: str, gold: str) -> bool:
    """Tell whether an answer is the gold answer: as text, as a number, or as an expression."""
    if len(answer) > LONGEST_ANSWER:
        return False
    answer, gold = _latex(answer), _latex(gold)
    if bool(_EQUALS.search(answer)) != bool(_EQUALS.search(gold)):
        answer, gold = _value(answer), _value(gold)
    mine, golden = _plain(answer), _plain(gold)
    if mine == golden or _RANGE.fullmatch(mine):
        return mine == golden != ""
    units = [
        unit.groups() for one in (answer, gold) if (unit := _MEASURED_IN.fullmatch(one.lower()))
    ]
    if len(units) == 2 and units[0] != units[1]:
        return False  # words may be synonyms, and where only one side has a unit, it is implied
    has_unit = parse_number(mine) is None and len(units) < 2
    numbers = (
        parse_number(_plain(_UNIT.sub("", answer.strip()))),
        parse_number(golden if has_unit else _plain(_UNIT.sub("", gold.strip()))),
    )
    if numbers[0] is not None and numbers[1] is not None:
        # Beside a number without a sign, 50 % is 0.5, and 50 where the question asks for percent.
        factor = Fraction(100) ** (("%" in gold) - ("%" in answer))
        return numbers[1] in (numbers[0], numbers[0] * factor)
    # The library adds numbers that stand side by side: 3 5 would be 8.
    if not mine or _APART.search(mine) or _COSTLY.search(answer) or not _is_nested_well(answer):
        return False
    # Their own timeout uses the alarm that the grader process needs.
    parsed, right = _parsed(answer), _parsed(gold)
    if not parsed or not right or _differ(parsed[0], right[0]):
        return False
    return bool(verify(right, parsed, timeout_seconds=None))


def _differ(mine: Any, golden: Any) -> bool:
    """Tell that two expressions with variables are not equal, by their values at two points.

    The library expands both, which takes minutes for (x+1)^{999}.
    """
    both = (mine, golden)
    if not all(isinstance(one, Expr) and not isinstance(one, Symbol) for one in both):
        return False  # a symbol may be a word, such as `\text{even}`, and is compared by its name
    variables = sorted(mine.free_symbols | golden.free_symbols, key=str)
    if not variables:
        return False
    try:
        for first in (0.31, 0.77):
            point = {one: first + 0.1 * place for place, one in enumerate(variables)}
            values = [complex(one.evalf(subs=point)) for one in both]
            if not cmath.isclose(*values, rel_tol=1e-6, abs_tol=1e-9):
                return all(map(cmath.isfinite, values))
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        pass  # it has no values, so the library decides
    return False


def _latex(text: str) -> str:
    """Write symbols that `math-verify` does not read as LaTeX that it reads."""
    text = normalize("NFC", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", text)
    return _SYMBOL.sub(lambda symbol: _LATEX[symbol[0]], text)


def _value(text: str) -> str:
    """Return the value of an equation one side of which is a name: 3 of `x = 3` and `3 = x`."""
    sides = _EQUALS.split(text)
    values = [side for side in sides if not _NAME.fullmatch(side)]
    return values[-1] if 0 < len(values) < len(sides) == 2 else text


def _stated(text: str) -> str:
    """Return what follows the words "answer is": a formula, or the first line, without markup."""
    markup = _MARKUP.match(text)
    text = text[markup.end() :] if markup else text
    displayed = re.match(_DISPLAYED, text, re.DOTALL)
    line = _inside(displayed) if displayed else text.partition("\n")[0].rstrip("*_` ")
    line = line.removesuffix(".").rstrip("*_` ")
    line = _EQUATION.sub("", line, count=1) if _EQUATION.match(line) else line
    if displayed or not line:
        return line
    formula = _FORMULA.search(line)
    return _inside(formula) if formula else _first_number(line)


def _inside(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None).strip()


def _listed(numbers: re.Match[str]) -> str:
    """Return a number, or several with a comma between them; `2:1` and `5-6` stay as they are."""
    return _SEPARATOR.sub(_comma, numbers[0])


def _comma(separator: re.Match[str]) -> str:
    """Write a separator as a comma; a hyphen after another separator is a sign, as in `5, -6`."""
    between = separator[0].strip()
    if between in (":", "-", "/") or separator[0] == ",":
        return separator[0]
    return ", -" if between.endswith("-") else ", "


def _is_nested_well(text: str) -> bool:
    """Tell whether brackets close, whatever their kind (an interval is `[0, 1)`), and not deep."""
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if not 0 <= depth <= DEEPEST:
            return False
    return not depth


def _first_number(text: str) -> str:
    """Return the first number of a text with a unit, or a list, or a text without a number."""
    numbers = _NUMBERS.search(text)
    is_number = _MEASURED.match(text) or not re.search(r"[\\^/]", text)
    return _listed(numbers) if numbers and is_number else text


def _plain(text: str) -> str:
    """Drop spaces, dollars and percent signs, but never so that two numbers become one."""
    return _DROPPED.sub(_gap, without_thousands(text.strip())).replace("{,}", ",")


def _gap(dropped: re.Match[str]) -> str:
    before = dropped.string[dropped.start() - 1 : dropped.start()]
    after = dropped.string[dropped.end() : dropped.end() + 1]
    return " " if re.fullmatch(r"[0-9.,][0-9.]", before + after) else ""


@lru_cache(maxsize=4096)
def _parsed(answer: str) -> list[Any]:
    """Parse LaTeX; empty where it is none."""
    boxed = rf"\boxed{{{without_thousands(answer)}}}"
    expressions: list[Any] = parse(boxed, [LatexExtractionConfig()], parsing_timeout=None)
    return expressions


is_equal("x^2", r"x \cdot x")  # The first comparison takes a second, which is part of the start.
