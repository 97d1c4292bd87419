"""The scores of a sweep over its settings and its rungs: heat maps, rank correlation, charts."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline.evaluation.behavior import verdict_of
from germline.record.early_stopping import signed_score
from germline.report.charts import Chart, Series, Style
from germline.report.heat_map import Cell, HeatMap
from germline.report.text_format import number
from germline.studies.sweep_files import read_json
from germline.studies.sweep_results import SweepResults, SweepTrial, score_at
from germline.studies.sweep_space import Dimension
from germline.types import HeldOutScore

MOST_VALUES, BINS = 8, 5
"""Largest number of different values that have a row or a column each; intervals of more values."""

RESAMPLES, FEWEST_PAIRS = 1000, 5
"""Resamples of the trials; least number of runs of a rank correlation."""

TINY = 1e-12
"""Stands for 0 on a logarithmic axis."""

BEST = 0.25
"""Share of the trials that parallel coordinates draw as the best."""


def is_broken(start: HeldOutScore, score: HeldOutScore) -> bool:
    """Whether the answers of a score are broken, compared with those at the start."""
    found = verdict_of([start, score])
    return found is not None and found.word == "broken"


def is_hacked(start: HeldOutScore, score: HeldOutScore) -> bool:
    """Whether answers earn more than at the start, although broken or worse by the metric."""
    is_worse = signed_score(score) < signed_score(start)
    return score.reward > start.reward and (is_worse or is_broken(start, score))


class Axis:
    """The values of a setting on an axis of a heat map; many numbers are put into intervals."""

    def __init__(self, dimension: Dimension, used: Sequence[Any]) -> None:
        self.name = dimension.name
        self._searched = dimension.values
        self._is_log = dimension.scale in ("log", "values")
        is_list = dimension.scale == "values"
        self._values = [*dimension.values] if is_list else sorted({*used} - {None})
        self.labels = [number(one) if isinstance(one, float) else str(one) for one in self._values]
        if not is_list and len(self._values) > MOST_VALUES:
            ends = dimension.spread(2 * BINS + 1)
            self._values = ends[1::2]  # the middle of each interval
            edges = [number(float(f"{edge:.2g}")) for edge in ends[::2]]
            self.labels = [f"{low} to {high}" for low, high in pairwise(edges)]

    def place(self, settings: Mapping[str, Any]) -> int | None:
        """Return the place of a value, or of the nearest one of a number; None outside of all."""
        value = settings.get(self.name)
        if value in self._values:
            return self._values.index(value)
        are_numbers = all(isinstance(one, int | float) for one in (value, *self._searched))
        if not are_numbers or not min(self._searched) <= value <= max(self._searched):
            return None
        sizes = np.array([*self._values, value], dtype=float)
        sizes = np.log(np.maximum(sizes, TINY)) if self._is_log else sizes
        return int(np.argmin(np.abs(sizes[:-1] - sizes[-1])))

    def share(self, settings: Mapping[str, Any]) -> float | None:
        """Return how far the value of a trial is along the axis, from 0 to 1."""
        place = self.place(settings)
        return None if place is None else place / max(1, len(self.labels) - 1)


def heat_maps(results: SweepResults, axes: Sequence[Dimension]) -> list[HeatMap]:
    """Return the map of the first two settings at every rung that a run has reached."""
    chosen = [one for one in results.trials if all(axis.name in one.settings for axis in axes[:2])]
    runs = [run for one in chosen for run in one.runs if run.scores]
    if len(axes) < 2 or not runs:
        return []
    x, y = (Axis(one, [trial.settings[one.name] for trial in chosen]) for one in axes[:2])

    def place(settings: Mapping[str, Any]) -> tuple[int | None, int | None]:
        return y.place(settings), x.place(settings)

    file = results.folder / "probe.json"
    probed = read_json(file)["recommended"] if file.exists() else {}
    marked = place({f"strategy.{name}": value for name, value in probed.items()})

    def cell(rung: int, at: tuple[int, int]) -> Cell:
        trials = [one for one in chosen if place(one.settings) == at]
        return _cell(trials, rung, is_marked=at == marked)

    rows, columns = range(len(y.labels)), range(len(x.labels))
    maps = [
        HeatMap(
            f"after {rung:,} rollouts",
            *(x.name, y.name, x.labels, y.labels),
            [[cell(rung, (row, column)) for column in columns] for row in rows],
            runs[0].scores[-1].higher_is_better,
        )
        for rung in results.rungs
    ]
    return [one for one in maps if one.means]


def _cell(trials: Sequence[SweepTrial], rung: int, *, is_marked: bool) -> Cell:
    pairs = [(run, score_at(run, rung)) for trial in trials for run in trial.runs]
    known = [(run.scores[0], score) for run, score in pairs if score]
    ended = [one for one in trials if one.state in ("pruned", "failed")]
    return Cell(
        scores=[score.mean for _, score in known],
        broken=sum(is_broken(*both) for both in known),
        hacked=sum(is_hacked(*both) for both in known),
        stopped=sum(not any(score_at(run, rung) for run in one.runs) for one in ended),
        is_marked=is_marked,
    )


def points_at(results: SweepResults, rung: int) -> list[tuple[Mapping[str, Any], float]]:
    """Return settings and signed score, the mean over run seeds, of trials that reached a rung.

    Trials that collapsed, whatever their answers earned, or crashed before count as the worst.
    """
    found, lost = [], []
    for trial in results.trials:
        score = trial.score_at(rung)
        if trial.has_collapsed or (score is None and trial.state == "failed"):
            lost.append(trial.settings)
        elif score is not None:
            found.append((trial.settings, score))
    worst = min((score for _, score in found), default=0.0)
    return [*found, *((settings, worst) for settings in lost)]


def rank_correlations(results: SweepResults) -> list[tuple[int, int, float, float, float]]:
    """Return for each earlier rung: rollouts, runs, Spearman's rho to the last rung, interval.

    Only runs that were trained to the end have both scores, and these are of the better trials. The
    interval is of the bootstrap over trials, whose run seeds stay together.
    """
    found = []
    for rung in results.rungs[:-1]:
        both = [
            [
                (signed_score(early), signed_score(last))
                for run in trial.runs
                if (early := score_at(run, rung)) and (last := score_at(run, results.rungs[-1]))
            ]
            for trial in results.trials
        ]
        trials = [np.array(some) for some in both if some]
        runs = sum(map(len, trials))
        if runs < FEWEST_PAIRS:
            continue
        drawn = np.random.default_rng(0).integers(len(trials), size=(RESAMPLES, len(trials)))
        rhos = [_spearman([trials[n] for n in places]) for places in drawn]
        low, high = np.percentile(rhos, [2.5, 97.5])
        found.append((rung, runs, _spearman(trials), float(low), float(high)))
    return found


def _spearman(trials: Sequence[Float64[np.ndarray, "runs 2"]]) -> float:
    """Return the rank correlation of pairs of scores; 0 where one of them is constant."""
    from scipy.stats import rankdata  # takes half a second

    ranks = rankdata(np.concatenate(trials), axis=0)
    ranks -= ranks.mean(axis=0)
    size = math.sqrt((ranks**2).sum(axis=0).prod())
    return float((ranks[:, 0] * ranks[:, 1]).sum() / size) if size else 0.0


def parallel_coordinates(results: SweepResults, axes: Sequence[Dimension]) -> Chart:
    """Chart trials as lines over the settings, each between its first and its last value."""
    others = [one for one in results.trials if one not in results.ranked]
    best, rest = math.ceil(BEST * len(results.ranked)), [*results.ranked, *others]
    groups: dict[str, tuple[Style, list[SweepTrial]]] = {
        f"the best {best}": ("line", rest[:best]),
        "others": ("thin", [one for one in rest[best:] if not one.has_collapsed]),
        "collapsed": ("dashed", [one for one in rest[best:] if one.has_collapsed]),
    }
    ends = [Axis(one, [trial.settings.get(one.name) for trial in rest]) for one in axes]
    x = [*range(1, len(axes) + 1), len(axes)]  # the last point is a gap
    series = [
        Series(
            label,
            x * len(trials),
            [y for one in trials for y in (*(axis.share(one.settings) for axis in ends), None)],
            color=color,
            style=style,
        )
        for color, (label, (style, trials)) in enumerate(groups.items())
        if trials
    ]
    names = (
        f"{n} {one.name} ({one.labels[0]} up to {one.labels[-1]})" for n, one in enumerate(ends, 1)
    )
    caption = f"A line per trial over the values of its settings: {', '.join(names)}."
    return Chart("settings of the trials", caption, "setting", series)
