"""Draw a run as a picture, and the charts of a page as SVG.

The only module that imports matplotlib. Figures are made from `Figure` objects, never through
pyplot: no global state, no window, no backend to choose. Colors are those of Okabe and Ito, which
color-blind readers can distinguish; lines also differ in width and marks, for gray print.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

from germline.evaluation import confidence_interval
from germline.record import HeldOutRow, RunDirectory
from germline.record.atomic_files import Row, write_atomically
from germline.record.best_generation import best_score
from germline.report.charts import Chart, Series
from germline.report.text_format import number, run_title, scored_as
from germline.types import HeldOutScore

BLUE, ORANGE, GREEN, INK, FAINT = "#0072B2", "#E69F00", "#009E73", "#222222", "#8A8A8A"

STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
"""The style of joins and caps, which would be that of the whole page; style.css has it."""


def draw_evolution(run: RunDirectory) -> Path:
    """Draw `evolution.png` into the run directory and return its path."""
    buffer = io.BytesIO()
    evolution_figure(run).savefig(buffer, format="png")
    write_atomically(run.figure, buffer.getvalue())
    return run.figure


def evolution_figure(run: RunDirectory) -> Figure:
    """Build the figure: fitness of the members above, held-out score of the center below."""
    figure = Figure(figsize=(8, 6.4), dpi=150, layout="constrained")
    figure.suptitle("\n".join(run_title(run.config)), fontsize=11, color=INK, x=0.01, ha="left")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_fitness(upper, run.generations(), run.config.method.graded)
    _draw_held_out(lower, run.held_out(), scored_as(run.config))
    lower.set_xlabel("generation", color=INK)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, steps=[1, 2, 5, 10]))
    figure.align_ylabels()
    return figure


@dataclass(frozen=True)
class PlotPanel:
    """One set of axes over a shared horizontal one.

    Attributes:
        label: of the vertical axis.
        curves: name -> (places, values).
        level: a value to compare with, and what it is.
        decades: whether the vertical axis is logarithmic; what is not above 0 is left out.
    """

    label: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    level: tuple[float, str] | None = None
    decades: bool = False


def draw_panels(
    path: Path, title: str, axis: str, panels: Sequence[PlotPanel], marks: Mapping[str, float]
) -> None:
    """Draw panels below each other over one logarithmic axis.

    Args:
        path: the PNG file.
        title: above all.
        axis: name of the horizontal axis.
        panels: from above.
        marks: name -> place of a vertical line through all panels.
    """
    figure = Figure(figsize=(8, 1.2 + 1.6 * len(panels)), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for row, (axes, panel) in enumerate(zip(rows, panels, strict=True)):
        _draw_panel(axes, panel)
        for (name, place), style in zip(marks.items(), ("-", "--", ":"), strict=False):
            label = "" if row else name  # said once is enough
            axes.axvline(place, color=FAINT, linewidth=1.2, linestyle=style, label=label)
        _legend(axes)
    rows[-1].set_xscale("log")
    rows[-1].xaxis.set_major_formatter(LogFormatter())
    rows[-1].xaxis.set_minor_formatter(LogFormatter())  # 20, not 2 x 10^1
    rows[-1].set_xlabel(axis, color=INK)
    figure.align_ylabels()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def _draw_panel(axes: Axes, panel: PlotPanel) -> None:
    _style(axes, panel.label)
    for (name, (places, values)), color in zip(
        panel.curves.items(), (BLUE, ORANGE, GREEN), strict=False
    ):
        pairs = [(x, y) for x, y in zip(places, values, strict=True) if y > 0 or not panel.decades]
        x, y = [x for x, _ in pairs], [y for _, y in pairs]
        axes.plot(x, y, color=color, marker="o", markersize=4, label=name)
    if panel.level is not None:
        value, name = panel.level
        axes.axhline(value, color=INK, linewidth=0.8, linestyle=":", label=name)
    if panel.decades:
        axes.set_yscale("log")
    axes.margins(y=0.12)


def _draw_fitness(axes: Axes, generations: Sequence[Row], graded: str) -> None:
    _style(axes, "fitness (training reward)")
    if not generations:
        _say(axes, "no generation yet")
        return
    at = [row["generation"] for row in generations]
    mean, p20, p80, best = (
        # A generation without rewards leaves a gap.
        np.array([row["fitness"][name] for row in generations], dtype=float)
        for name in ("mean", "p20", "p80", "max")
    )
    alone = len(at) == 1
    axes.fill_between(
        at, p20, p80, color=BLUE, alpha=0.2, linewidth=0, label=f"20-80 % of {graded}s"
    )
    axes.plot(
        at, best, color=ORANGE, linewidth=1.1, label=f"best {graded}", marker="." if alone else ""
    )
    axes.plot(at, mean, color=BLUE, linewidth=2.0, label="mean", marker="o" if alone else "")
    _legend(axes)


def _draw_held_out(axes: Axes, held_out: Sequence[HeldOutRow], speaker: str) -> None:
    scores = [one.score for one in held_out]
    metric = scores[0].metric.replace("_", " ") if scores else "score"
    _style(axes, f"held-out {metric}")
    if not scores:
        _say(axes, "no held-out score yet")
        return
    known = [(score.mean, *confidence_interval(score)) for score in scores]
    axes.errorbar(
        [score.generation for score in scores],
        [score.mean for score in scores],
        yerr=np.array([(mean - low, high - mean) for mean, low, high in known]).T,
        color=GREEN,
        marker="o",
        markersize=4,
        linewidth=1.5,
        capsize=3,
        elinewidth=1.0,
        label=f"{speaker}, {scores[-1].n} examples, 95 % intervals",
    )
    best = best_score(scores)
    if best is not None and len(scores) > 1:
        axes.plot(
            best.generation,
            best.mean,
            color=ORANGE,
            marker="*",
            markersize=12,
            linestyle="",
            zorder=3,
            label=f"best: {number(best.mean)} after {best.generation}",
        )
    axes.margins(x=0.08, y=0.12)
    _label(axes, scores[0], "right")
    if len(scores) > 1:
        _label(axes, scores[-1], "left")
    _legend(axes)


def _label(axes: Axes, score: HeldOutScore, side: Literal["left", "right"]) -> None:
    """Write the value next to its point, on the side without a curve."""
    axes.annotate(
        number(score.mean),
        (score.generation, score.mean),
        xytext=(-8 if side == "right" else 8, 0),
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=10,
        fontweight="bold",
        color=INK,
    )


def _legend(axes: Axes) -> None:
    """Put the legend above the axes, where it does not cover the curves."""
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 0.99),
        borderaxespad=0,
        frameon=False,
        fontsize=8,
        ncols=3,
    )


def _style(axes: Axes, label: str) -> None:
    axes.set_ylabel(label, color=INK)
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT)


def svg(chart: Chart) -> str:
    """Draw a chart as an SVG element that is part of a page, the same bytes for the same chart.

    It is small enough to be read on a telephone: 460 pixels wide, in 11 point type. It has no text
    of a user, which could be no valid math text or have no glyph: the page writes the labels.
    """
    settings = {"svg.fonttype": "none", "svg.hashsalt": chart.title, "font.size": 11.0}
    with rc_context(settings):
        figure = Figure(figsize=(4.8, 2.7), layout="constrained")
        axes = figure.add_subplot()
        _style(axes, "")
        axes.tick_params(labelsize=11)
        for series in chart.series:
            _draw_series(axes, series)
        axes.set_xlabel(chart.x_label, color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    return STYLE.sub("", text[text.index("<svg") :])


def _draw_series(axes: Axes, series: Series) -> None:
    color, alone = series.tone, len(series.x) == 1
    y, low, high = (np.array(values, dtype=float) for values in (series.y, series.low, series.high))
    if series.style == "points":
        known = np.array([np.nan_to_num(y - low), np.nan_to_num(high - y)]) if len(low) else None
        axes.errorbar(series.x, y, yerr=known, color=color, marker="o", markersize=4, capsize=3)
        return
    if len(low):
        axes.fill_between(series.x, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(
        series.x,
        y,
        color=color,
        linewidth=1.0 if series.style == "thin" else 2.0,
        linestyle="--" if series.style == "dashed" else "-",
        marker="o" if alone else "",
    )
