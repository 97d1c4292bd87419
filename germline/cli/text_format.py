"""How model text and series of numbers fit on a terminal; plain words are those of reports."""

import math
from collections.abc import Sequence
from itertools import pairwise

from germline.report.text_format import (
    caution,
    duration,
    escape_control_characters,
    kind_of_error,
    number,
    score,
)

__all__ = [
    "caution",
    "duration",
    "escape_control_characters",
    "kind_of_error",
    "number",
    "one_line_excerpt",
    "score",
    "sparkline",
]

BARS = "▁▂▃▄▅▆▇█"


def one_line_excerpt(text: str, width: int) -> str:
    """Fit model text into one line: line breaks shown, control characters removed, the rest cut.

    A model may write terminal escape sequences; they must not reach the terminal.
    """
    line = escape_control_characters(
        text.replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " ")
    )
    return line if len(line) <= width else line[: width - 1] + "…"


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
