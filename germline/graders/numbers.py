r"""Read numbers as people and models write them; every value is an exact fraction.

- A comma separates thousands only between groups of three digits (`1,234,567`). Any other comma
  separates the items of a list: `3,14` is 3 and 14. In place of such a comma, a narrow or no-break
  space, an apostrophe, `{,}`, `~` and LaTeX's `\,` are read. `1.234.567` is no number.
- A minus is `-`, U+2212, an en dash or another dash of that length, before or after the sign of a
  currency, and with a space after `=` or an opening bracket. After a letter, a digit, a full stop
  or a closing bracket it is a subtraction (`3-5`).
- `2/4`, `\frac{2}{4}`, `\frac24` and `½` are fractions, also of fractions; `1 1/2` is a mixed
  number, and `1/2/2026` is neither. `0.1\overline{6}` is 1/6.
"""

import re
from collections import deque
from fractions import Fraction
from itertools import pairwise
from unicodedata import normalize

LONGEST_NUMBER = 64
"""Numbers with more characters are ignored."""

LONGEST_TAIL = 1000
"""Characters up to the last digit of a text in which its last number is looked for."""

DEEPEST_FRACTION = 8
"""Levels of `\\frac` within `\\frac` that are read."""

_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2044\u2215", "/"),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **{one: normalize("NFKC", one).replace("\u2044", "/") for one in _VULGAR},
    }
)
_DIGITS = "".join(map(chr, [*range(0x30, 0x3A), *range(0xFF10, 0xFF1A)])) + _VULGAR
_MIXED = re.compile(rf"(?<=[0-9])(?=[{_VULGAR}])")
_SEPARATOR = re.compile(
    r"(?<=[0-9])(?:\{,\}|,?\\[,!;: ]|[\u00a0\u2007\u2009\u202f~'\u2019])(?=[0-9]{3}(?![0-9]))"
)
_REPEATING = re.compile(
    r"(?<![0-9])([0-9]{0,9})\.([0-9]{0,9})\\(?:overline|bar|dot)\s*(?:\{([0-9]{1,9})\}|([0-9]))"
)
_SPACED_SIGN = re.compile(r"(?<=[=({\[])(\s*[-+])\s+(?=[0-9.\\$€£¥])")
_INSIDE = r"((?:[^{}\\]|\\(?![dt]?frac))*)"
_FRAC = re.compile(rf"\\[dt]?frac\s*(?:\{{{_INSIDE}\}}|([0-9]))\s*(?:\{{{_INSIDE}\}}|([0-9]))")
GROUPED = r"(?<![0-9])(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])"
SIGN = r"(?:(?:(?<![^\W_])(?<![.)\]}])[-+])?(?:\\?[$€£¥]\s?)?|\\?[$€£¥][-+])"
UNSIGNED = rf"(?:(?:{GROUPED}|[0-9]+)(?:\.[0-9]+)*|(?<![0-9])\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
NUMBER = re.compile(SIGN + UNSIGNED)
_GROUPED = re.compile(GROUPED)
_EXPONENT = re.compile(r"[eE][-+]?[0-9]{4,}")
_SLASH = re.compile(r"\s*/\s*")
_ENDLESS = re.compile(r"[0-9]\.[0-9]*(?:\([0-9]|[0-9](?:\.\.\.|\u2026|\\[lc]?dots))")
_JOINT = re.compile(r"(?:[^\w=#./\n]|_)*|\s*(?:and|or|to)\s*")  # of a list, a range, a power


def with_plain_signs(text: str) -> str:
    """Return a text with `-` for every minus, `/` in fractions, and `,` between thousands."""
    text = _REPEATING.sub(_repeating, _MIXED.sub(" ", text).translate(_PLAIN))
    return _SPACED_SIGN.sub(r"\1", _SEPARATOR.sub(",", text))


def _repeating(decimal: re.Match[str]) -> str:
    whole, once, period = decimal[1], decimal[2], decimal[3] or decimal[4]
    below = 10 ** len(once) * (10 ** len(period) - 1)
    return f"{int(whole + once + period) - int(whole + once or '0')}/{below}"


def without_thousands(text: str) -> str:
    """Return a text with plain signs and without commas between groups of thousands."""
    return _GROUPED.sub(lambda found: found.group().replace(",", ""), with_plain_signs(text))


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text; None without one, or where it is too long."""
    return _value(_last_numbers(text))


def single_number(text: str) -> Fraction | None:
    """Return the last number of a text; None without one, or if another one is joined to it.

    Examples of the latter: `3,4`, `3 or 4`, `1 000`, `5-7`, `10^6`. What repeats without an end in
    `0.(6)` or `0.333...` is not clear either.
    """
    if _ENDLESS.search(text):
        return None
    numbers = _last_numbers(f"={text}")  # after it, a sign may have a space
    if len(numbers) > 1 and _JOINT.fullmatch(_between(*numbers[-2:])):
        return None
    return _value(numbers)


def parse_number(text: str) -> Fraction | None:
    """Return the number that a text consists of; None if it consists of anything else."""
    text = _plain_fractions(text.strip())
    numbers = list(NUMBER.finditer(text)) if len(text) <= 3 * LONGEST_NUMBER else []
    if not 1 <= len(numbers) <= 3 or numbers[0].start() or numbers[-1].end() < len(text):
        return None
    gaps = [_between(*pair) for pair in pairwise(numbers)]
    is_fraction = not gaps or _SLASH.fullmatch(gaps[-1]) is not None
    is_mixed = len(gaps) < 2 or (gaps[0].isspace() and _is_proper(*numbers))
    return _value(numbers) if is_fraction and is_mixed else None


def _last_numbers(text: str) -> list[re.Match[str]]:
    end = max(map(text.rfind, _DIGITS)) + 1
    tail = text[max(0, end - LONGEST_TAIL) : end + DEEPEST_FRACTION]  # braces may end fractions
    return [*deque(NUMBER.finditer(_plain_fractions(tail)), maxlen=3)]


def _plain_fractions(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        top, bottom = (found[1] or found[2] or "", found[3] or found[4] or "")
        gap = " " if found.string[found.start() - 1 : found.start()].isdigit() else ""
        values = (parse_number(top), parse_number(bottom)) if "/" in top + bottom else (None, None)
        if values[0] is not None and values[1]:
            return f"{gap}{values[0] / values[1]}"
        return f"{gap}{top}/{bottom}"

    text = with_plain_signs(text)
    for _ in range(DEEPEST_FRACTION if "frac" in text else 0):  # the innermost ones first
        text, count = _FRAC.subn(plain, text)
        if not count:
            break
    return text


def _value(numbers: list[re.Match[str]]) -> Fraction | None:
    """Return the value of the last of these numbers, with its numerator and whole part."""
    if not numbers:
        return None
    last = _one(numbers[-1])
    if len(numbers) == 1 or not _SLASH.fullmatch(_between(*numbers[-2:])):
        return last
    is_date = len(numbers) > 2 and _SLASH.fullmatch(_between(*numbers[:2]))
    above = None if is_date else _one(numbers[-2])
    if above is None or not last:
        return last if is_date else None
    fraction = above / last
    if len(numbers) > 2 and _between(*numbers[:2]).isspace() and _is_proper(*numbers):
        whole = _one(numbers[0])
        if whole is not None:
            return whole + (-fraction if numbers[0].group().startswith("-") else fraction)
    return fraction


def _one(number: re.Match[str]) -> Fraction | None:
    text = number.group()
    if len(text) > LONGEST_NUMBER or _EXPONENT.search(text) or text.count(".") > 1:
        return None
    return Fraction(re.sub(r"[^-0-9.eE+]", "", text))


def _between(left: re.Match[str], right: re.Match[str]) -> str:
    return left.string[left.end() : right.start()]


def _is_proper(whole: re.Match[str], above: re.Match[str], below: re.Match[str]) -> bool:
    """Tell whether three numbers are a mixed number, such as 1 1/2."""
    texts = whole.group().lstrip("-+"), above.group(), below.group()
    if not all(text.isdigit() and len(text) <= LONGEST_NUMBER for text in texts):
        return False
    return int(texts[1]) < int(texts[2])
