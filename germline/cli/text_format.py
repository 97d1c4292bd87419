"""Format model text and series of numbers for a terminal; numbers are formatted as in reports."""

import math
from collections.abc import Sequence
from itertools import pairwise

from germline.report.text_format import (
    caution,
    difference,
    duration,
    escape_control_characters,
    kind_of_error,
    mean_rewards,
    number,
    over_seeds,
    score,
    scorer_line,
)

__all__ = [
    "caution",
    "difference",
    "duration",
    "escape_control_characters",
    "kind_of_error",
    "mean_rewards",
    "number",
    "one_line_excerpt",
    "over_seeds",
    "score",
    "scorer_line",
    "sparkline",
    "without_common_start",
]

LONGEST_COMMON = 60
"""Characters that prompts may have in common at the start before that start is omitted."""

BARS = "▁▂▃▄▅▆▇█"


def one_line_excerpt(text: str, width: int) -> str:
    """Shorten model text to one line: line breaks become ⏎, control characters are replaced.

    A model may write terminal escape sequences; they must not reach the terminal. The text is cut
    after a whole word where possible.
    """
    line = escape_control_characters(
        text.replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " ")
    )
    if len(line) <= width:
        return line
    cut = line[: width - 1]
    end = cut.rfind(" ")
    return (cut[:end] if end > width // 2 and line[width - 1] != " " else cut).rstrip() + "…"


def without_common_start(prompts: Sequence[str]) -> list[str]:
    """Omit the instructions with which all prompts begin; short ones are kept.

    An excerpt of countdown's prompts would otherwise show only the instructions, which are the same
    in every prompt.
    """
    ends = sorted(set(prompts))
    if len(ends) < 2:
        return list(prompts)
    pairs = zip(ends[0], ends[-1], strict=False)  # Of sorted texts these two differ first.
    common = next((at for at, (one, other) in enumerate(pairs) if one != other), len(ends[0]))
    if common <= LONGEST_COMMON:
        return list(prompts)
    # Some words before the first difference are kept, for orientation.
    start = ends[0].rfind(" ", 0, common - LONGEST_COMMON // 3) + 1
    return [f"… {prompt[start:]}" for prompt in prompts]


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw values as a row of bars, the newest at the right; long series are averaged in groups."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    columns = min(width, len(known))
    edges = [round(column * len(known) / columns) for column in range(columns + 1)]
    means = [sum(known[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)
