"""Draw charts: as SVG for a page, and below each other as a PNG picture.

The only module that imports matplotlib. Figures are made from `Figure` objects, never through
pyplot: no global state, no window, no backend to choose.
"""

import io
import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogFormatter, MaxNLocator

from germline.record import RunDirectory
from germline.record.atomic_files import write_atomically
from germline.report import charts
from germline.report.charts import EMPTY, Chart, HeatMap, Series
from germline.report.run_facts import RunFacts
from germline.report.text_format import run_title

INK, FAINT = "#222222", "#8A8A8A"

SVG_DPI = 72
"""Dots per inch of every SVG that matplotlib draws."""

MARKERS = "osD^v*Px"
"""Markers of the series of a figure that is read without color, in order."""

MOST_MARKED = 30
"""Points of a line from which on markers would cover it."""

LONGEST_HALF = 18
"""Characters of a label, of which two fit beside each other in a narrow figure."""

STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
"""The style of joins and caps, which would be that of the whole page; style.css has it."""


def draw_evolution(run: RunDirectory) -> Path:
    """Draw `evolution.png` into the run directory and return its path."""
    draw_panels(run.figure, "\n".join(run_title(run.config)), evolution_charts(run))
    return run.figure


def evolution_charts(run: RunDirectory) -> list[Chart]:
    """Return what the picture shows: fitness of the members above, held-out scores below."""
    facts = RunFacts(run.path)
    return [charts.fitness(facts), charts.held_out(facts)]


def draw_panels(path: Path, title: str, panels: Sequence[Chart]) -> None:
    """Write charts below each other, each over its own axis, as a PNG file.

    At 375 pixels its type is 12 pixels high. Series of few points have markers of their own, so
    that the figure is read without color.
    """
    with rc_context({"font.size": 11.0}):
        figure = Figure(figsize=(4.8, 0.4 + 3.4 * len(panels)), dpi=200)
        figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
        axes_of = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, panel in zip(axes_of, panels, strict=True):
            _draw_chart(axes, panel, MARKERS)
            axes.tick_params(labelsize=11)
            axes.set_ylabel(panel.title, color=INK)
            axes.set_xlabel(panel.x_label, color=INK)
            labels = axes.get_legend_handles_labels()[1]
            if labels:
                columns = 1 if max(map(len, labels)) > LONGEST_HALF else 2
                place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False}
                axes.legend(fontsize=10, ncols=columns, **place)
        _write_png(path, figure)


def draw_heat_maps(path: Path, title: str, maps: Sequence[HeatMap]) -> None:
    """Write heat maps below each other as a PNG file; each cell says in words what it holds."""
    columns, rows = len(maps[0].columns), len(maps[0].rows)
    size = (2.2 + 1.15 * max(columns, 3), 0.8 + len(maps) * (1.1 + 0.62 * rows))
    figure = Figure(figsize=size, dpi=100)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    tones = colormaps["Blues"].with_extremes(bad=EMPTY)
    for axes, one in zip(figure.subplots(len(maps), 1, squeeze=False)[:, 0], maps, strict=True):
        shades = [[one.shade(cell) for cell in row] for row in one.cells]
        axes.imshow(shades, cmap=tones, vmin=0, vmax=2, aspect="auto")  # dark text is legible
        for y, row in enumerate(one.cells):
            for x, cell in enumerate(row):
                weight = "bold" if one.is_best(cell) else "normal"
                text = "\n".join(cell.lines) or "–"
                axes.text(x, y, text, ha="center", va="center", fontsize=8, weight=weight)
        axes.set_title(one.title, fontsize=10, color=INK, loc="left")
        axes.set_xticks(range(columns), one.columns, fontsize=8)
        axes.set_yticks(range(rows), one.rows, fontsize=8)
        axes.set_xlabel(one.x, color=INK, fontsize=9)
        axes.set_ylabel(one.y, color=INK, fontsize=9)
    _write_png(path, figure)


def svg(chart: Chart) -> str:
    """Draw a chart as an SVG element that is part of a page, the same bytes for the same chart.

    It is small enough to be read on a telephone: 460 pixels wide, in 11 point type. It has no text
    of a user, which could be no valid math text or have no glyph: the page writes the labels.
    """
    settings = {"svg.fonttype": "none", "svg.hashsalt": chart.title, "font.size": 11.0}
    with rc_context(settings):
        figure = Figure(figsize=(4.8, 2.7), dpi=SVG_DPI)
        axes = figure.add_subplot()
        _draw_chart(axes, chart)
        axes.tick_params(labelsize=11)
        axes.set_xlabel(chart.x_label, color=INK)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        buffer = io.StringIO()
        _lay_out(FigureCanvasSVG(figure))
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    return STYLE.sub("", text[text.index("<svg") :])


def _write_png(path: Path, figure: Figure) -> None:
    buffer = io.BytesIO()
    _lay_out(FigureCanvasAgg(figure))
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def _lay_out(canvas: FigureCanvasBase) -> None:
    """Lay out a figure for a canvas; a layout engine of its own would have it drawn twice."""
    ConstrainedLayoutEngine().execute(canvas.figure)


def _draw_chart(axes: Axes, chart: Chart, markers: str = "") -> None:
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    places = sorted({float(x) for series in chart.series for x in series.x})
    counts = all(map(float.is_integer, places))
    axes.xaxis.set_major_locator(MaxNLocator(integer=counts, nbins=6, steps=[1, 2, 5, 10]))
    if chart.log_x:  # over a few values, which are the ticks
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.set_xticks([], minor=True)
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
        axes.yaxis.set_major_formatter(LogFormatter())
    in_order = cycle(markers)  # dashed lines take none: a run has the same one in every chart
    for series in chart.series:
        _draw_series(axes, series, "" if series.style == "dashed" else next(in_order, ""))
    if not chart.series:
        text = f"no {chart.title} yet"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT)


def _draw_series(axes: Axes, series: Series, marker: str) -> None:
    color, alone = series.tone, len(series.x) == 1
    marker = marker if len(series.x) <= MOST_MARKED else ""
    y, low, high = (np.array(values, dtype=float) for values in (series.y, series.low, series.high))
    if series.style == "points":
        known = np.array([np.nan_to_num(y - low), np.nan_to_num(high - y)]) if len(low) else None
        axes.errorbar(
            *(series.x, y, known),
            color=color,
            marker=marker or "o",
            markersize=4,
            capsize=3,
            label=series.label,
        )
        return
    if len(low):
        axes.fill_between(series.x, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(
        series.x,
        y,
        color=color,
        linewidth=1.0 if series.style == "thin" else 2.0,
        linestyle="--" if series.style == "dashed" else "-",
        marker=marker or ("o" if alone else ""),
        markersize=5 if marker else None,
        label=series.label,
    )
