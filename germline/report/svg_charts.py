"""Charts as SVG: this module computes scales, ticks and shapes; the template writes the markup.

A chart is drawn twice, wide and narrow, because text in an SVG shrinks with the picture: on a
telephone it would be too small to read. The page shows the drawing that fits. Colors are CSS
classes (`run-0`, ...) that the style sheet defines, so one drawing serves light, dark and print.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

MOST_POINTS = 400
"""Points of a curve; longer ones are averaged in groups."""

CHARACTER = 7.2
"""Width of a digit in the 13 pixel type of the charts, in pixels, rounded up."""

CONSTANT = 1e-9
"""Relative spread below which values count as constant: rounding must not set the scale."""

Number = float | None


@dataclass(frozen=True)
class Curve:
    """A line through known points; a gap where a value is missing."""

    label: str
    tone: str
    x: Sequence[float]
    y: Sequence[Number]


@dataclass(frozen=True)
class Band:
    """The area between two lines."""

    label: str
    tone: str
    x: Sequence[float]
    low: Sequence[Number]
    high: Sequence[Number]


@dataclass(frozen=True)
class Points:
    """Measured points with their intervals (NaN: not known), joined by a line.

    `named` are the indices of the points whose values are written above them; `shift` moves the
    points sideways, in pixels, so that the points of several runs do not overlap.
    """

    label: str
    tone: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    named: Sequence[int] = ()
    shift: float = 0.0


Mark = Curve | Band | Points


@dataclass(frozen=True)
class Chart:
    """The content of a chart: marks from back to front, and the texts around them."""

    name: str
    caption: str
    alt: str
    x_label: str
    y_label: str
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Shape:
    """One mark in pixels: paths for its lines and its intervals, dots for its points, texts."""

    kind: str
    tone: str
    path: str = ""
    whiskers: str = ""
    dots: Sequence[tuple[float, float]] = ()
    texts: Sequence[tuple[float, float, str, str]] = ()


@dataclass(frozen=True)
class Drawing:
    """A chart laid out for one width, in pixels."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class Scale:
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def moved(self, pixels: float) -> "Scale":
        """Return the same scale, shifted by some pixels."""
        return replace(self, start=self.start + pixels, end=self.end + pixels)


def draw_chart(chart: Chart, width: float, height: float) -> Drawing:
    """Lay a chart out for a picture of this size."""
    low, high = _extent([value for mark in chart.marks for value in _values(mark)])
    y_ticks = ticks(low, high, 5 if height > 250 else 4)
    labels = [_label(tick, y_ticks) for tick in y_ticks]
    left = 34 + CHARACTER * max(map(len, labels))
    right, top, bottom = width - 12, 14.0, height - 42
    first, last = _extent([value for mark in chart.marks for value in mark.x], whole=True)
    margin = 0.03 * (last - first)
    x = Scale(first - margin, last + margin, left, right)
    y = Scale(min(low, y_ticks[0]), max(high, y_ticks[-1]), bottom, top)
    x_ticks = ticks(first, last, max(2, int((right - left) / 75)), whole=True)
    return Drawing(
        width=width,
        height=height,
        left=round(left, 1),
        right=right,
        top=top,
        bottom=bottom,
        x_ticks=[(x(tick), f"{tick:g}") for tick in x_ticks],
        y_ticks=[(y(tick), label) for tick, label in zip(y_ticks, labels, strict=True)],
        shapes=[_shape(mark, x, y) for mark in chart.marks],
    )


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most about `most` round numbers inside a range; whole ones on request."""
    step = (high - low) / most
    power = 10.0 ** math.floor(math.log10(step))
    step = power * next(one for one in (1, 2, 2.5, 5, 10) if one * power >= step * (1 - 1e-9))
    step = max(1.0, float(math.ceil(step))) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)] or [low]


def thin_out(values: Sequence[Number]) -> list[Number]:
    """Average a long series in groups of equal size; short ones stay as they are."""
    group = math.ceil(len(values) / MOST_POINTS)
    if group <= 1:
        return list(values)
    groups = [values[start : start + group] for start in range(0, len(values), group)]
    known = [[value for value in one if value is not None] for one in groups]
    return [float(np.mean(one)) if one else None for one in known]


def _shape(mark: Mark, x: Scale, y: Scale) -> Shape:
    if isinstance(mark, Band):
        return Shape("band", mark.tone, _area(mark, x, y))
    if isinstance(mark, Points):
        return _pointed(mark, x.moved(mark.shift), y)
    pairs = zip(mark.x, mark.y, strict=True)
    known = [(x(at), y(value)) for at, value in pairs if value is not None]
    return Shape(
        "curve", mark.tone, _line(mark.x, mark.y, x, y), dots=known if len(known) == 1 else ()
    )


def _pointed(mark: Points, x: Scale, y: Scale) -> Shape:
    dots = [(x(at), y(value)) for at, value in zip(mark.x, mark.y, strict=True)]
    floors, tops = ([y(end) for end in ends] for ends in zip(*_intervals(mark), strict=True))
    whiskers = [
        f"M{at - 4:.1f},{top}h8M{at},{top}V{floor}M{at - 4:.1f},{floor}h8"
        for (at, _), top, floor in zip(dots, tops, floors, strict=True)
    ]
    texts = [_text(dots[place][0], tops[place], mark.y[place], x) for place in mark.named]
    return Shape("points", mark.tone, _line(mark.x, mark.y, x, y), "".join(whiskers), dots, texts)


def _text(at: float, top: float, value: float, x: Scale) -> tuple[float, float, str, str]:
    """Write a value above its interval, moved inwards at the edges of the chart."""
    text = f"{value:.3g}".replace("-", "−")
    half = CHARACTER * len(text) / 2
    return (min(max(at, x.start + half), x.end + 10 - half), top - 7, "middle", text)


def _line(x: Sequence[float], y: Sequence[Number], across: Scale, up: Scale) -> str:
    """Draw a line through the known values; a missing value interrupts it."""
    path, pen = [], "M"
    for at, value in zip(x, y, strict=True):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{across(at)},{up(value)}")
        pen = "L"
    return "".join(path)


def _area(band: Band, x: Scale, y: Scale) -> str:
    """Draw one closed area per section without a missing value."""
    path, section = [], list[tuple[float, float, float]]()
    for at, low, high in [*zip(band.x, band.low, band.high, strict=True), (0.0, None, None)]:
        if low is not None and high is not None:
            section.append((x(at), y(low), y(high)))
        elif section:
            there = "L".join(f"{a},{top}" for a, _, top in section)
            back = "L".join(f"{a},{floor}" for a, floor, _ in reversed(section))
            path.append(f"M{there}L{back}Z")
            section = []
    return "".join(path)


def _values(mark: Mark) -> list[Number]:
    if isinstance(mark, Band):
        return [*mark.low, *mark.high]
    if isinstance(mark, Curve):
        return list(mark.y)
    return [value for pair in _intervals(mark) for value in pair]


def _intervals(mark: Points) -> list[tuple[float, float]]:
    """Return the ends of the intervals; for an unknown interval, the point itself."""
    return [
        (low, high) if math.isfinite(low) and math.isfinite(high) else (value, value)
        for value, low, high in zip(mark.y, mark.low, mark.high, strict=True)
    ]


def _extent(values: Sequence[Number], *, whole: bool = False) -> tuple[float, float]:
    """Return a range that contains all values and is never empty."""
    known = [value for value in values if value is not None and math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    if high - low <= CONSTANT * max(abs(low), abs(high)):
        widen = 0.1 * abs(high) or 1.0
        return (low, high + 1.0) if whole else (low - widen, high + widen)
    return (low, high) if whole else (low - 0.04 * (high - low), high + 0.04 * (high - low))


def _label(tick: float, around: Sequence[float]) -> str:
    """Write a tick with the decimals its neighbors need."""
    step = around[1] - around[0] if len(around) > 1 else abs(tick) or 1.0
    if abs(tick) >= 1e6 or step < 1e-4:
        return f"{tick:.3g}".replace("-", "−")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step, decimals) != step:
        decimals += 1
    return f"{tick:,.{decimals}f}".replace("-", "−")
