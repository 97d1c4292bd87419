"""The charts of a run and of several, and heat maps over two settings, as data; `plots` draws them.

Labels may be a user's text, so the page writes them beside the drawing, which has numbers alone.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from germline.evaluation.held_out import confidence_interval, score_of_values
from germline.record.atomic_files import Row
from germline.record.metrics_rows import has_groups, scores_by_retained, scores_by_scorer, signal
from germline.report.comparison import SeedGroup
from germline.report.run_facts import LONGEST_NAME, RunFacts
from germline.report.text_format import bounded_text, counted_by, number, scored_as
from germline.types import HeldOutScore

COLORS = (
    *("#0072b2", "#b65a00", "#00795a", "#8f3f88"),
    *("#8a6400", "#2b87ba", "#222222", "#5b6670"),
)
"""Dark on white, and different for color-blind readers (after Okabe and Ito)."""


EMPTY = "#e4e4e4"
"""The color of a cell without scores."""

INTERVALS = "Scores on examples that are not trained on, with 95 % intervals over examples."

SHARES_OF_MEMBERS = ("informative_examples", "informative_pairs", "empty")
SHARES_OF_SAMPLES = ("groups_without_signal", "truncated", "empty")
"""Signals that are shares of a generation, where members generate and where the center does."""

Number = float | None
Style = Literal["line", "thin", "dashed", "points"]


@dataclass(frozen=True)
class Series:
    """Values over generations or updates; None is a gap.

    `low` and `high` are the ends of the intervals of points, or of the band of a line; `color` is a
    place in `COLORS`.
    """

    label: str
    x: Sequence[float] | Sequence[int]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    color: int = 0
    style: Style = "line"

    @property
    def tone(self) -> str:
        """The color, as a page and a drawing name it."""
        return COLORS[self.color % len(COLORS)]


@dataclass(frozen=True)
class Chart:
    """One drawing with its title, and a sentence about it."""

    title: str
    caption: str
    x_label: str
    series: Sequence[Series]
    log_y: bool = False
    log_x: bool = False

    @property
    def alt(self) -> str:
        """The content in words: the first and the last value of every series."""
        ends = [
            f"{one.label} from {number(known[0])} to {number(known[-1])}"
            for one in self.series
            if (known := [value for value in one.y if value is not None])
        ]
        return f"Chart of {self.title} by {self.x_label}: {'; '.join(ends)}."


@dataclass(frozen=True)
class Cell:
    """The runs with a pair of values, or with values in a pair of intervals.

    Attributes:
        scores: held-out scores of runs that got this far.
        broken: number of these runs whose answers are broken (`evaluation.behavior`).
        hacked: number of these runs whose answers earn more than at the start, although they are
            broken or the metric is worse.
        stopped: number of runs that were stopped earlier.
        is_marked: whether the pair that `germline probe` recommends is here.
    """

    scores: Sequence[float] = ()
    broken: int = 0
    hacked: int = 0
    stopped: int = 0
    is_marked: bool = False

    @property
    def mean(self) -> float:
        """The mean score; NaN without one."""
        return statistics.fmean(self.scores) if self.scores else math.nan

    @property
    def lines(self) -> list[str]:
        """What the cell says, in lines of a few characters."""
        spread = f" ± {number(statistics.stdev(self.scores))}" if len(self.scores) > 1 else ""
        counts = {"broken": self.broken, "hacked": self.hacked}
        runs = len(self.scores)
        return [
            *(["◆ probe"] if self.is_marked else []),
            *([f"{number(self.mean)}{spread}"] if runs else []),
            *(f"{count}/{runs} {name}" for name, count in counts.items() if count),
            *([f"{self.stopped} stopped"] if self.stopped else []),
        ]


@dataclass(frozen=True)
class HeatMap:
    """Cells by row and column; `columns` and `rows` are the values, or intervals of values."""

    title: str
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    higher_is_better: bool

    @property
    def means(self) -> list[float]:
        """The means of the cells that have scores."""
        return [cell.mean for row in self.cells for cell in row if cell.scores]

    def is_best(self, cell: Cell) -> bool:
        """Whether a cell has the best mean, perhaps with others."""
        best = max if self.higher_is_better else min
        return bool(cell.scores) and cell.mean == best(self.means)

    def shade(self, cell: Cell) -> float:
        """Return how good a cell is, from 0 (worst mean) to 1 (best); NaN without scores."""
        if not cell.scores:
            return math.nan
        low, high = min(self.means), max(self.means)
        share = (cell.mean - low) / (high - low) if high > low else 0.0
        return share if self.higher_is_better else 1 - share

    def tone(self, cell: Cell) -> str:
        """Return the color of a cell, on which black text is legible."""
        if not cell.scores:
            return EMPTY
        return "#" + "".join(f"{round(255 - self.shade(cell) * by):02x}" for by in (105, 60, 30))


def curves(run: RunFacts) -> list[Chart]:
    """Chart fitness, held-out scores, sigma and steps; what is constant has no chart."""
    made: list[Chart | None] = [fitness(run), held_out(run), *_held_out_scorers(run)]
    if run.config.method.trains_center:
        made.append(_column(run, "sigma", "Sigma of the members."))
    if run.config.search.has_measured_rate:
        made.append(_column(run, "step_in_sigmas", "Root mean square of the steps, in sigmas."))
    made.append(_column(run, "lambda", "Weight of the cost in the reward."))
    made.append(_column(run, "center_cost", "Mean cost of the center's completions."))
    return [chart for chart in made if chart and chart.series]


def fitness(run: RunFacts) -> Chart:
    """Chart mean, best and spread of the fitness of members, or the mean reward of samples."""
    of_members = run.config.method.members_generate
    caption = (
        f"Fitness of the {run.config.method.graded}s on the training examples of each generation"
    )
    caption += ", with the band from the 20th to the 80th percentile." if of_members else "."
    series = [_mean_fitness(run, "mean", 0, banded=of_members)] if run.rows else []
    if of_members and run.rows:
        series.append(
            _series("best member", run.rows, lambda row: row["fitness"]["max"], 1, "thin")
        )
    return Chart("fitness", caption, "generation", series)


def held_out(run: RunFacts) -> Chart:
    """Chart the held-out scores."""
    better = f" {run.better.capitalize()}." if run.better else ""
    series = [_points(scored_as(run.config), run.scores, 2)] if run.scores else []
    if run.best and len(run.scores) > 1:
        label = f"best: {number(run.best.mean)} after {run.best.generation}"
        best = Series(label, [run.best.generation], [run.best.mean], color=1, style="points")
        series.append(best)
    return Chart(f"held-out {run.metric}", INTERVALS + better, counted_by(run.config), series)


def retained(run: RunFacts) -> list[Chart]:
    """Chart the scores of each task and text that training should keep."""
    return [
        _of_scores(run, f"{name}, {scores[-1].metric.replace('_', ' ')}", scores, color=3)
        for name, scores in scores_by_retained(run.scores).items()
    ]


def parts(run: RunFacts) -> list[Chart]:
    """Chart each part of the rubric, of members in training and of the center when held out."""
    trained = [(row["generation"], row.get("parts", {})) for row in run.rows]
    scored = [(score.generation, score.parts) for score in run.scores]
    graded = f"{run.config.method.graded}s, training"
    charts = []
    for name in dict.fromkeys(name for _, values in trained + scored for name in values):
        series = []
        for color, (label, recorded) in enumerate({graded: trained, "held-out": scored}.items()):
            known = [(x, values[name]) for x, values in recorded if values.get(name) is not None]
            if known:
                x, means = zip(*known, strict=True)
                series.append(Series(label, x, means, color=2 * color))
        title = bounded_text(name, LONGEST_NAME)
        charts.append(Chart(title, "Part of the reward.", "generation", series))
    return charts


def signals(run: RunFacts) -> list[Chart]:
    """Chart the shares that carry information, agreement, changed weights and the walk."""
    rows = [row for row in run.rows if row.get("signals")]
    if not rows:
        return []

    def of(name: str, label: str, color: int = 0, style: Style = "line") -> Series:
        return _series(label, rows, lambda row: signal(row, name), color, style)

    shares = SHARES_OF_SAMPLES if has_groups(rows) else SHARES_OF_MEMBERS
    walk = [of("walk", "walk of the updates")]
    if (edge := run.config.record.edge) is not None:
        x = [walk[0].x[0], walk[0].x[-1]]
        walk.append(Series("edge", x, [edge, edge], color=1, style="dashed"))
    charts = {
        "shares": (
            "Shares of a generation that tell whether its rewards carry a signal.",
            [of(name, name.replace("_", " "), n) for n, name in enumerate(shares)],
        ),
        "agreement of halves": (
            "Cosine of the updates that the two halves of each batch would give separately.",
            [of("agreement", "agreement")],
        ),
        "walk": (
            "Distance of a random walk of the updates, in the unit of sigma; at the edge "
            "(record.edge) a model with random noise breaks.",
            walk,
        ),
    }
    made = [
        Chart(title, caption, "generation", [one for one in series if any(one.y)])
        for title, (caption, series) in charts.items()
    ]
    return [chart for chart in made if chart.series]


def compared(runs: Sequence[RunFacts]) -> list[Chart]:
    """Chart runs side by side: two charts for the runs that share task and metric."""
    charts: list[Chart] = []
    groups: dict[tuple[str, str], list[tuple[int, RunFacts]]] = {}
    for color, run in enumerate(runs):
        task = bounded_text(run.config.task.title, LONGEST_NAME)
        groups.setdefault((task, run.metric), []).append((color, run))
    for (task, metric), same in groups.items():
        trained = [(color, run) for color, run in same if run.rows]
        means = [_mean_fitness(run, run.name, color, banded=False) for color, run in trained]
        scores = [_points(run.name, run.scores, color) for color, run in same if run.scores]
        caption = "Mean on the training examples of each generation."
        charts.append(Chart(f"fitness, {task}", caption, "generation", means))
        charts.append(Chart(f"held-out {metric}, {task}", INTERVALS, "updates", scores))
    return [chart for chart in charts if chart.series]


def over_seeds(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Chart the mean over run seeds of each config, with the band from worst to best seed."""
    caption = "Mean over run seeds, with the band from the worst to the best seed."
    by_metric: dict[str, list[Series]] = {}
    for color, group in enumerate(groups):
        x, values = group.over_updates()
        ends = (values.min(axis=1).tolist(), values.max(axis=1).tolist())
        series = Series(group.name, x, values.mean(axis=1).tolist(), *ends, color=color)
        by_metric.setdefault(group.metric, []).append(series)
    return [
        Chart(f"held-out {metric} over seeds", caption, "updates", series)
        for metric, series in by_metric.items()
    ]


def mean_lines(
    rows: Sequence[Row], by: str, x: str, y: str, style: Style = "line", suffix: str = ""
) -> list[Series]:
    """Return a line for each value of `by`: the mean of `y` over the rows that have the same `x`.

    Its band is the range of several rows, or the interval of a single mean that has one; dashed
    lines have none. Rows where `y` is not known are left out. The suffix ends every label.
    """
    found = []
    for color, label in enumerate(dict.fromkeys(row[by] for row in rows)):
        at: dict[float, list[tuple[float, float, float]]] = {}
        for row in rows:
            value, ends = row[y] if isinstance(row[y], tuple) else (row[y], (row[y], row[y]))
            if row[by] == label:
                some = at.setdefault(row[x], [])  # also where unknown, for the order of the places
                some += [(value, *ends)] if value is not None and not math.isnan(value) else []
        if at := {place: some for place, some in at.items() if some}:
            means, lows, highs = zip(
                *(zip(*some, strict=True) for some in at.values()), strict=True
            )
            band = [*map(min, lows)], [*map(max, highs)]
            band = band if band[0] != band[1] and style == "line" else ([], [])
            means = [*map(statistics.fmean, means)]
            found.append(Series(f"{label}{suffix}", [*at], means, *band, color, style))
    return found


def _series(
    label: str,
    rows: Sequence[Row],
    value: Callable[[Row], Number],
    color: int = 0,
    style: Style = "line",
) -> Series:
    x, values = [row["generation"] for row in rows], [value(row) for row in rows]
    return Series(label, x, values, color=color, style=style)


def _points(label: str, scores: Sequence[HeldOutScore], color: int) -> Series:
    low, high = zip(*map(confidence_interval, scores), strict=True)
    x, means = [one.generation for one in scores], [one.mean for one in scores]
    return Series(label, x, means, low, high, color, "points")


def _mean_fitness(run: RunFacts, label: str, color: int, *, banded: bool) -> Series:
    line = _series(label, run.rows, lambda row: row["fitness"]["mean"], color)
    low, high = ([row["fitness"][name] for row in run.rows] for name in ("p20", "p80"))
    return replace(line, low=low, high=high) if banded else line


def _held_out_scorers(run: RunFacts) -> list[Chart]:
    """Chart the reward of the held-out completions, and their scores by `held_out.scorers`."""
    rewarded = [one for one in run.scores if one.rewards]
    found = dict(scores_by_scorer(run.scores))
    if any(one.rewards != one.values for one in rewarded):
        found["reward"] = [
            score_of_values(one.generation, "reward", one.rewards, higher_is_better=True)
            for one in rewarded
        ]
    about = "Score of the same completions, with 95 % intervals. "
    return [_of_scores(run, f"held-out {name}", one, about) for name, one in found.items()]


def _of_scores(
    run: RunFacts, title: str, scores: Sequence[HeldOutScore], about: str = "", color: int = 2
) -> Chart:
    caption = f"{about}{'Higher' if scores[-1].higher_is_better else 'Lower'} is better."
    series = [_points(scored_as(run.config), scores, color)]
    return Chart(bounded_text(title, LONGEST_NAME), caption, counted_by(run.config), series)


def _column(run: RunFacts, name: str, caption: str) -> Chart | None:
    """Chart a column of generations.jsonl; None if it is constant or absent."""
    rows = [row for row in run.rows if row.get(name) is not None]
    if len({row[name] for row in rows}) < 2:
        return None
    title = name.replace("_", " ")
    return Chart(title, caption, "generation", [_series(title, rows, lambda row: row[name])])
