"""The charts of a page as data; `matplotlib_plots.svg` draws them.

Labels may be a user's text, so the page writes them beside the drawing, which has numbers alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from germline.evaluation.held_out import confidence_interval, score_of_values
from germline.record.atomic_files import Row
from germline.record.metrics_rows import calibrated_kl, scores_by_scorer
from germline.report.finding_rules import WINDOW, has_groups, mean_signal, signal
from germline.report.run_facts import LONGEST_NAME, RunFacts
from germline.report.seed_groups import SeedGroup
from germline.report.text_format import (
    bounded_text,
    counted_by,
    number,
    scored_as,
    short_option,
)
from germline.types import HeldOutScore

MOST_POINTS = 400
"""Points of a curve; longer ones are averaged in groups."""

MOST_BANDS = 3
"""Largest number of runs whose bands are drawn in one chart."""

COLORS = (
    *("#0072b2", "#b65a00", "#00795a", "#8f3f88"),
    *("#8a6400", "#2b87ba", "#222222", "#5b6670"),
)
"""Dark on white, and different for color-blind readers (after Okabe and Ito)."""

Number = float | None


@dataclass(frozen=True)
class Series:
    """Values over generations or updates; None is a gap.

    Attributes:
        low: lower ends of a band, or of the intervals of points.
        high: upper ends.
        color: place in `COLORS`.
        style: `points` have intervals, lines have bands.
    """

    label: str
    x: Sequence[float] | Sequence[int]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    color: int = 0
    style: Literal["line", "thin", "dashed", "points"] = "line"

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

    @property
    def alt(self) -> str:
        """The content in words: the first and the last value of every series."""
        ends = [
            f"{one.label} from {number(known[0])} to {number(known[-1])}"
            for one in self.series
            if (known := [value for value in one.y if value is not None])
        ]
        return f"Chart of {self.title} by {self.x_label}: {'; '.join(ends)}."


def curves(run: RunFacts) -> list[Chart]:
    """Draw fitness, held-out scores, sigma and steps."""
    made = [_fitness(run), _held_out(run), *_held_out_scorers(run), _sigma(run), _step(run)]
    costs = [
        _row_chart(run, "lambda", "Weight of the cost in the reward; fitness falls as it grows."),
        _row_chart(run, "center_cost", "Mean cost of the center's completions in the batch."),
    ]
    return [chart for chart in [*made, *costs] if chart]


def parts(run: RunFacts) -> list[Chart]:
    """Draw each part of the rubric, of members in training and of the center when held out."""
    rows = [row for row in run.rows if row.get("parts")]
    scores = [score for score in run.scores if score.parts]
    names = dict.fromkeys(
        name
        for found in (*(row["parts"] for row in rows), *(score.parts for score in scores))
        for name in found
    )
    return [_part(run, name, rows, scores) for name in names]


def signals(run: RunFacts) -> list[Chart]:
    """Draw the shares that carry information, agreement, changed weights and the walk."""
    rows = [row for row in run.rows if row.get("signals")]
    if not rows:
        return []
    smooth = [
        mean_signal(rows[max(0, n - WINDOW) : n], "agreement") for n in range(1, 1 + len(rows))
    ]
    agreement = Series(f"mean of {WINDOW}", _x(rows), thin_out(smooth))
    walk = [_signal("walk of the updates", rows, "walk")]
    if (edge := run.config.record.edge) is not None:
        ends = [walk[0].x[0], walk[0].x[-1]]
        walk.append(Series("edge", ends, [edge, edge], color=1, style="dashed"))
    names = SHARES_OF_SAMPLES if has_groups(rows) else SHARES_OF_MEMBERS
    shares = [_signal(label, rows, name, n) for n, (name, label) in enumerate(names.items())]
    charts = [
        ("shares", "Shares of a generation that tell whether its rewards carry a signal.", shares),
        (
            "agreement of halves",
            "Cosine of the updates that the two halves of each batch would give separately.",
            [_signal("one generation", rows, "agreement", 1, "thin"), agreement],
        ),
        (
            MOVED,
            "Share of the served weights that an update changes, after rounding.",
            [_signal(MOVED, rows, "step.moved")],
        ),
        (
            "walk",
            "Distance of a random walk of the updates, in the unit of sigma; at the edge "
            "(record.edge) a model with random noise breaks.",
            walk,
        ),
    ]
    made = [
        Chart(title, caption, "generation", [one for one in series if _is_shown(one)])
        for title, caption, series in charts
    ]
    return [chart for chart in made if chart.series]


def options(rows: Sequence[Row]) -> list[Chart]:
    """Draw the probabilities of every prompt setting that was searched, a line per option."""
    searched = [row for row in rows if row.get("option_probabilities")]
    charts = []
    for name, by_option in searched[-1]["option_probabilities"].items() if searched else ():
        values = [
            [row["option_probabilities"][name][option] for row in searched] for option in by_option
        ]
        series = [
            Series(short_option(option), _x(searched), thin_out(found), color=place)
            for place, (option, found) in enumerate(zip(by_option, values, strict=True))
        ]
        caption = "Probability with which a member uses each; the center uses the most likely one."
        charts.append(Chart(bounded_text(name, LONGEST_NAME), caption, "generation", series))
    return charts


def compared(runs: Sequence[RunFacts], colors: Sequence[int]) -> list[Chart]:
    """Draw runs in the same charts: two charts for the runs that share task and metric."""
    charts: list[Chart] = []
    for task, metric in dict.fromkeys((_task(run), run.metric) for run in runs):
        same = [
            (color, run)
            for color, run in zip(colors, runs, strict=True)
            if (_task(run), run.metric) == (task, metric)
        ]
        trained = [(color, run) for color, run in same if run.rows]
        banded = len(trained) <= MOST_BANDS
        fitness = [_mean_fitness(run, run.name, color, banded=banded) for color, run in trained]
        scores = [_points(run.name, run.scores, color) for color, run in same if run.scores]
        if fitness:
            caption = "Mean on the training examples of each generation."
            charts.append(Chart(f"fitness, {task}", caption, "generation", fitness))
        if scores:
            charts.append(Chart(f"held-out {metric}, {task}", INTERVALS, "updates", scores))
    return charts


def over_seeds(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Draw the mean over run seeds of each config, with the band from worst to best seed."""
    charts = []
    for metric in dict.fromkeys(group.metric for group in groups):
        series = []
        for color, group in enumerate(groups):
            if group.metric == metric:
                x, values = group.over_updates()
                low, high = values.min(axis=1).tolist(), values.max(axis=1).tolist()
                mean = values.mean(axis=1).tolist()
                series.append(Series(group.name, x, mean, low, high, color))
        caption = "Mean over run seeds, with the band from the worst to the best seed."
        charts.append(Chart(f"held-out {metric} over seeds", caption, "updates", series))
    return charts


INTERVALS = "Scores on examples that are not trained on, with 95 % intervals over examples."

MOVED = "served weights changed"

SHARES_OF_MEMBERS = {
    "informative_examples": "examples on which members differ",
    "informative_pairs": "antithetic pairs that differ",
    "empty": "empty completions",
}
SHARES_OF_SAMPLES = {
    "groups_without_signal": "prompts whose samples tie",
    "truncated": "truncated samples",
    "empty": "empty completions",
}


def thin_out(values: Sequence[Number]) -> list[Number]:
    """Average a long series in groups of equal size; short ones stay as they are."""
    group = math.ceil(len(values) / MOST_POINTS)
    if group <= 1:
        return list(values)
    groups = [values[start : start + group] for start in range(0, len(values), group)]
    known = [[value for value in one if value is not None] for one in groups]
    return [float(np.mean(one)) if one else None for one in known]


def _fitness(run: RunFacts) -> Chart | None:
    if not run.rows:
        return None
    graded = run.config.method.graded
    best = thin_out([row["fitness"]["max"] for row in run.rows])
    return Chart(
        "fitness",
        f"Fitness of the {graded}s on the training examples of each generation, with the band from "
        "the 20th to the 80th percentile.",
        "generation",
        [
            _mean_fitness(run, "mean", 0, banded=True),
            Series(f"best {graded}", _x(run.rows), best, color=1, style="thin"),
        ],
    )


def _mean_fitness(run: RunFacts, label: str, color: int, *, banded: bool) -> Series:
    mean, low, high = (
        thin_out([row["fitness"][name] for row in run.rows]) for name in ("mean", "p20", "p80")
    )
    return Series(label, _x(run.rows), mean, low * banded, high * banded, color)


def _held_out(run: RunFacts) -> Chart | None:
    if not run.scores:
        return None
    better = f" {run.better.capitalize()}." if run.better else ""
    series = [_points(scored_as(run.config), run.scores, 2)]
    return Chart(f"held-out {run.metric}", INTERVALS + better, counted_by(run.config), series)


def _held_out_scorers(run: RunFacts) -> list[Chart]:
    """Draw the reward of the held-out completions, and their scores by `held_out.scorers`."""
    rewarded = [one for one in run.scores if one.rewards]
    found = dict(scores_by_scorer(run.scores))
    if any(one.rewards != one.values for one in rewarded):
        found["reward"] = [
            score_of_values(one.generation, "reward", one.rewards, higher_is_better=True)
            for one in rewarded
        ]
    return [
        Chart(
            f"held-out {bounded_text(name, LONGEST_NAME)}",
            f"Score of the same completions by {bounded_text(name, LONGEST_NAME)}, with 95 % "
            f"intervals; {'higher' if scores[-1].higher_is_better else 'lower'} is better.",
            counted_by(run.config),
            [_points(scored_as(run.config), scores, 2)],
        )
        for name, scores in found.items()
    ]


def _sigma(run: RunFacts) -> Chart | None:
    """Draw sigma by generation; None if it is constant, or differs only between members."""
    values = [row["sigma"] for row in run.rows]
    if len(set(values)) < 2 or not run.config.method.trains_center:
        return None
    ends = [row["sigmas"] for row in run.rows if "sigmas" in row]
    whole = len(ends) == len(values)
    low, high = (thin_out([one[end] for one in ends]) * whole for end in ("min", "max"))
    series = [Series("sigma", _x(run.rows), thin_out(values), low, high)]
    return Chart("sigma", f"Sigma of the members.{calibrated(run)}", "generation", series)


def _step(run: RunFacts) -> Chart | None:
    """Draw the length of every step; None if the learning rate is not measured."""
    caption = f"Root mean square of the steps, in sigmas.{calibrated(run)}"
    return (
        _row_chart(run, "step_in_sigmas", caption) if run.config.search.has_measured_rate else None
    )


def calibrated(run: RunFacts) -> str:
    """Return the result of the calibration of sigma, if any; begins with a space."""
    first = next((row for row in run.rows if row.get("calibration")), None)
    if first is None:
        return ""
    kl = number(calibrated_kl(first, first["sigma"]))
    return (
        f" Sigma was calibrated to {number(first['sigma'])} before generation "
        f"{first['generation']} (KL divergence about {kl} nats per token)."
    )


def _row_chart(run: RunFacts, name: str, caption: str) -> Chart | None:
    """Draw a column of generations.jsonl; None if it is constant or absent."""
    rows = [row for row in run.rows if row.get(name) is not None]
    values = [row[name] for row in rows]
    if len(set(values)) < 2:
        return None
    title = name.replace("_", " ")
    return Chart(title, caption, "generation", [Series(title, _x(rows), thin_out(values))])


def _part(
    run: RunFacts, name: str, all_rows: Sequence[Row], all_scores: Sequence[HeldOutScore]
) -> Chart:
    rows = [row for row in all_rows if row["parts"].get(name) is not None]
    scores = [score for score in all_scores if math.isfinite(score.parts.get(name, math.nan))]
    series = []
    if rows:
        values = thin_out([row["parts"][name] for row in rows])
        series.append(Series(f"{run.config.method.graded}s, training", _x(rows), values))
    if scores:
        x, means = [score.generation for score in scores], [score.parts[name] for score in scores]
        label = f"{scored_as(run.config)}, held-out"
        series.append(Series(label, x, means, color=2, style="points"))
    weight = run.config.task.scorers.get(name)
    said = f", weight {number(weight.weight)}" if weight else ""
    return Chart(
        bounded_text(name, LONGEST_NAME), f"Part of the reward{said}.", "generation", series
    )


def _signal(
    label: str,
    rows: Sequence[Row],
    name: str,
    color: int = 0,
    style: Literal["line", "thin"] = "line",
) -> Series:
    values = thin_out([signal(row, name) for row in rows])
    return Series(label, _x(rows), values, color=color, style=style)


def _is_shown(series: Series) -> bool:
    """Whether a curve shows anything: in most runs all weights change, and none is empty."""
    return any(series.y) and not (
        series.label == MOVED and all(one == 1 for one in series.y if one)
    )


def _points(label: str, scores: Sequence[HeldOutScore], color: int) -> Series:
    low, high = zip(*map(confidence_interval, scores), strict=True)
    x, means = [score.generation for score in scores], [score.mean for score in scores]
    return Series(label, x, means, low, high, color, "points")


def _x(rows: Sequence[Row]) -> list[float]:
    """Return the generations of the points of a curve over these rows, thinned out like values."""
    places = thin_out([float(row["generation"]) for row in rows])
    return [place for place in places if place is not None]


def _task(run: RunFacts) -> str:
    return bounded_text(run.config.task.title, LONGEST_NAME)
