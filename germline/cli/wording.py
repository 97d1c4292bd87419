"""How numbers, durations and model text look on a terminal."""

import math
from collections.abc import Sequence
from itertools import pairwise

from germline.types import Score

BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """Write a number with three digits or so; a dash when there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Write seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def score(value: Score) -> str:
    """Write a held-out score with its standard error."""
    return f"{number(value.mean)} ± {number(value.standard_error)}"


def excerpt(text: str, width: int) -> str:
    """Fit model text into one line: line breaks shown, control characters removed, the rest cut.

    A model may write terminal escape sequences; they must not reach the terminal.
    """
    line = visible(text.replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " "))
    return line if len(line) <= width else line[: width - 1] + "…"


def visible(text: str) -> str:
    """Replace what a terminal might obey, line breaks and tabs excepted."""
    return "".join(one if one.isprintable() or one in "\n\t" else "�" for one in text)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw values as a row of bars, the newest at the right; long rows are averaged in groups."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    columns = min(width, len(known))
    edges = [round(column * len(known) / columns) for column in range(columns + 1)]
    means = [sum(known[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)
