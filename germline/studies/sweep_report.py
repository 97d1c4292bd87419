"""The report of a sweep, from its folder alone: a page, a figure, a table of runs, the best config.

`trials.csv` (`runs_csv`) and `configspace.csv` (`space_csv`) are as DeepCAVE reads them.
"""

import csv
import io
import math
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from germline.config.config_files import as_yaml
from germline.errors import count_of
from germline.evaluation.behavior import verdict_of
from germline.evaluation.statistics import Z_95
from germline.record.atomic_files import Row, read_json, write_atomically
from germline.record.early_stopping import signed_score
from germline.report.charts import Cell, Chart, HeatMap, Series, Style
from germline.report.comparison import changed_settings
from germline.report.html_page import render_template
from germline.report.text_format import Table, number, percent
from germline.studies.sweep_results import SweepResults, SweepTrial
from germline.studies.sweep_samplers import FEWEST_TRIALS, Importance, Point, importances
from germline.studies.sweep_space import Dimension, overrides_of
from germline.types import HeldOutScore

MOST_SHOWN, FEWEST_PAIRS = 10, 5
"""Trials in the table of the best ones; least number of trials of a rank correlation."""

BEST = 0.25
"""Share of the trials that parallel coordinates draw, and reasons name, as the best."""

ABOUT = (
    "Scores are held-out scores, ± the standard deviation over the runs of a cell; a value of a "
    "range is in the nearest cell. A run is broken if its answers are, compared with those at the "
    "start, and hacked if its reward rose although they are or the metric got worse. Importance "
    "(PED-ANOVA) is that for being among the best trials, with 95 % bootstrap intervals over "
    "trials; a setting matters if it is above 95 % of the importances with shuffled scores."
)


def write_report(results: SweepResults) -> Path:
    """Write all files of the report into the folder of the sweep, and return the page."""
    report, folder = SweepReport(results), results.folder
    files = {
        "trials.csv": report.runs_csv(),
        "configspace.csv": report.space_csv(),
        "best.yaml": report.best_config(),
        "sweep.html": report.page(),
    }
    for name, text in files.items():
        if text:
            write_atomically(folder / name, text.encode("utf-8", "replace"))
        else:
            (folder / name).unlink(missing_ok=True)
    if report.maps:
        from germline.report import plots

        plots.draw_heat_maps(folder / "sweep.png", f"{report.title}: {report.metric}", report.maps)
    return folder / "sweep.html"


class SweepReport:
    """What a report says about the trials of a sweep in their present state."""

    def __init__(self, results: SweepResults) -> None:
        self.results, self.space = results, results.space
        self.title = f"sweep of {Path(results.facts['config']).stem.lstrip('.')}"
        scored = [run for one in results.trials for run in one.runs if run.scores]
        self.metric = f"held-out {scored[0].metric}, {scored[0].better}" if scored else "no score"

    @cached_property
    def rung(self) -> int:
        """The last rung that many trials reached; later ones have the best alone."""
        reached = {rung: len(points_at(self.results, rung)) for rung in self.results.rungs}
        many = max(FEWEST_TRIALS, max(reached.values()) / 2)
        known = (rung for rung, count in reached.items() if count >= many)
        return max(known, default=self.results.rungs[0])

    @cached_property
    def importances(self) -> list[Importance]:
        """The importance of every setting at `rung`."""
        return importances(self.space, points_at(self.results, self.rung))

    @cached_property
    def axes(self) -> list[Dimension]:
        """The settings of every trial: sigma, the learning rate, others by their importance."""
        order = ["strategy.sigma", "strategy.learning_rate"]
        order += [one.name for one in self.importances or self.space.dimensions]
        axes = (one for one in self.space.dimensions if not one.when)
        return sorted(axes, key=lambda one: order.index(one.name))

    @cached_property
    def maps(self) -> list[HeatMap]:
        """The map of the first two axes at every rung that a run has reached."""
        if len(self.axes) < 2:
            return []
        x, y = self.axes[:2]
        file, trials = self.results.folder / "probe.json", self.results.trials
        probed = read_json(file)["recommended"] if file.exists() else {}
        pair = {f"strategy.{name}": value for name, value in probed.items()}
        marked, *places = (
            (y.place(one), x.place(one)) for one in (pair, *(trial.settings for trial in trials))
        )

        def cell(rung: int, *at: int) -> Cell:
            some = [one for one, place in zip(trials, places, strict=True) if place == at]
            known = [(run.scores[0], score) for trial in some for run, score in trial.at(rung)]
            return Cell(
                scores=[score.mean for _, score in known],
                broken=sum(is_broken(*both) for both in known),
                hacked=sum(is_hacked(*both) for both in known),
                stopped=sum(one.state != "running" and not one.at(rung) for one in some),
                is_marked=at == marked,
            )

        columns, rows = ([_label(one) for one in axis.grid] for axis in (x, y))
        return [
            HeatMap(
                f"after {rung:,} rollouts",
                *(x.name, y.name, columns, rows),
                [[cell(rung, m, n) for n in range(len(columns))] for m in range(len(rows))],
                higher_is_better=all(one.sign > 0 for one in trials),
            )
            for rung in self.results.rungs
            if any(one.at(rung) for one in trials)
        ]

    def tables(self) -> dict[str, Table]:
        """Return the tables, by their titles."""
        shares = [
            (one.name, *map(percent, (one.share, one.low, one.high))) for one in self.importances
        ]
        correlations = [
            (f"{rung:,}", str(trials), *map(number, (rho, low, high)))
            for rung, trials, rho, low, high in rank_correlations(self.results)
        ]
        ends = ("95 % interval from", "to")
        names = ("rung, rollouts", "trials", "Spearman's rho", *ends)
        found = {
            "Best trials": self.best_trials(),
            f"Importance after {self.rung:,} rollouts": Table(("setting", "share", *ends), shares),
            "Rank correlation with the last rung": Table(names, correlations),
        }
        return {title: table for title, table in found.items() if table.rows}

    def best_trials(self) -> Table:
        """Return the best complete trials."""
        rows = []
        for one in self.results.ranked[:MOST_SHOWN]:
            scores = sorted(run.scores[-1].mean for run in one.counted)
            spread = f"{number(scores[0])} to {number(scores[-1])}"
            found = (one.mean, self.results.shrunk(one), one.unseen)
            score, shrunk, unseen = map(self.results.shown, found)
            about = (str(one.number), one.sampler, " ".join(overrides_of(one.settings)))
            rows.append((*about, score, str(len(scores)), spread, shrunk, unseen))
        names = ("trial", "sampler", "settings", "score", "seeds", "seeds from, to", "shrunk")
        return Table((*names, "unseen rows, new seeds"), rows)

    def page(self) -> str:
        """Return the report as a page."""
        values = {one.name: ", ".join(map(str, one.values)) for one in self.space.dimensions}
        return render_template(
            "sweep.html",
            title=f"germline {self.title}",
            metric=self.metric,
            summary=self.results.summary(),
            tables=self.tables(),
            maps={f"{one.y} by {one.x}, {one.title}": one for one in self.maps},
            charts=[self.parallel_coordinates()] if self.results.trials else [],
            unimportant=[
                f"{one.name} ({values[one.name]})" for one in self.importances if not one.matters
            ],
            best=self.best_config(),
            about=ABOUT,
        )

    def parallel_coordinates(self) -> Chart:
        """Chart trials as lines over the settings, each between its first and its last value."""
        ranked, axes = self.results.ranked, self.axes
        best = ranked[: math.ceil(BEST * len(ranked))]
        rest = [one for one in self.results.trials if one not in best]
        groups: dict[str, tuple[Style, list[SweepTrial]]] = {
            f"the best {len(best)}": ("line", best),
            "others": ("thin", [one for one in rest if one.state != "collapsed"]),
            "collapsed": ("dashed", [one for one in rest if one.state == "collapsed"]),
        }
        x = [*range(1, len(axes) + 1), len(axes)]  # the last point is a gap
        series = [
            Series(
                label,
                x * len(trials),
                [y for one in trials for y in (*(axis.share(one.settings) for axis in axes), None)],
                color=color,
                style=style,
            )
            for color, (label, (style, trials)) in enumerate(groups.items())
            if trials
        ]
        names = (
            f"{n} {one.name} ({_label(one.values[0])} up to {_label(one.values[-1])})"
            for n, one in enumerate(axes, 1)
        )
        caption = f"A line per trial over the values of its settings: {', '.join(names)}."
        return Chart("settings of the trials", caption, "setting", series)

    def best_config(self) -> str:
        """Return the config of the best trial with the reasons for its values, if there is one."""
        if (best := self.results.best) is None:
            return ""
        config = best.runs[0].config
        record = config.record.model_copy(update={"shared": None})
        settings = changed_settings(config.model_copy(update={"record": record}))
        settings.pop("seed")
        text = as_yaml(settings, allow_unicode=True, width=88)
        return "\n".join([*(f"# {line}" for line in self._reasons(best)), text])

    def _reasons(self, best: SweepTrial) -> list[str]:
        results = self.results
        mean, shrunk = map(results.shown, (best.mean, results.shrunk(best)))
        trials = count_of(len(results.complete), "complete trials")
        seeds = count_of(len(best.counted), "run seeds")
        lines = [
            f"Trial {best.number}, the best of {trials} ({self.metric}): {mean} over {seeds}, "
            f"{shrunk} shrunk",
            results.optimism(best) if best.tested.counted else "Not tried with new run seeds",
        ]
        weights = {one.name: one for one in self.importances}
        ranked = results.ranked if len(results.ranked) >= FEWEST_TRIALS else []
        top = ranked[: int(BEST * len(ranked))]
        for name, value in best.settings.items():
            reasons = []
            if near := sorted({str(one.settings[name]) for one in top if name in one.settings}):
                reasons.append(f"{', '.join(near)} in the best quarter of the complete trials")
            if weight := weights.get(name):
                chance = "" if weight.matters else ", which chance may explain"
                reasons.append(f"{percent(weight.share)} of the importance{chance}")
            lines.append(f"{name}={value}: {'; '.join(reasons) or 'too few trials for a reason'}")
        return lines

    def runs_csv(self) -> str:
        """Return a row for each run of a trial that has ended, and each rung that it reached."""
        names = [one.name for one in self.space.dimensions]
        return _csv(
            {
                "config_id": trial.number,
                **{name: trial.settings.get(name) for name in names},
                "metric:score [-inf; +inf] (maximize)": signed_score(score),
                "budget": rung,
                "seed": run.config.seed,
                "start_time": (began := _began(run.rows[0])),
                "end_time": began + _seconds(run.rows[score.generation - 1]),
                "status": "success",
                "score": score.mean,
                "broken": int(is_broken(run.scores[0], score)),
                "hacked": int(is_hacked(run.scores[0], score)),
                "sampler": trial.sampler,
                "state": trial.state,
            }
            for trial in self.results.trials
            if trial.state != "running"
            for rung in self.results.rungs
            for run, score in trial.at(rung)
        )

    def space_csv(self) -> str:
        """Return the space as DeepCAVE's converter of data frames reads it."""
        rows: list[dict[str, Any]] = []
        for one in self.space.dimensions:
            low, high = one.values[0], one.values[-1]
            row = {"lower": low, "upper": high, "log": one.scale == "log"}
            if one.scale == "values":
                items = {f"item_{n}": value for n, value in enumerate(one.values)}
                row = {"default": low, "ordered": False, **items}
            kind = {"int": "integer", "values": "categorical"}.get(one.scale, "float")
            rows.append({"name": one.name, "type": kind, **row})
        return _csv(rows)


def is_broken(start: HeldOutScore, score: HeldOutScore) -> bool:
    """Whether the answers of a score are broken, compared with those at the start."""
    found = verdict_of([start, score])
    return found is not None and found.word == "broken"


def is_hacked(start: HeldOutScore, score: HeldOutScore) -> bool:
    """Whether answers earn more than at the start, although broken or worse by the metric."""
    is_worse = signed_score(score) < signed_score(start)
    return score.reward > start.reward and (is_worse or is_broken(start, score))


def points_at(results: SweepResults, rung: int) -> list[Point]:
    """Return settings and signed score, the mean over run seeds, of trials that reached a rung.

    Trials that collapsed, whatever their answers earned, or crashed before count as the worst.
    """
    scores = {one.number: one.score_at(rung) for one in results.trials if one.state != "collapsed"}
    known = {number: score for number, score in scores.items() if not math.isnan(score)}
    worst = min(known.values(), default=0.0)
    return [
        (one.settings, known.get(one.number, worst))
        for one in results.trials
        if one.number in known or one.state in ("collapsed", "failed")
    ]


def rank_correlations(results: SweepResults) -> list[tuple[int, int, float, float, float]]:
    """Return for each earlier rung: rollouts, trials, Spearman's rho to the last rung, interval.

    Only trials that were trained to the end have both scores, and these are of the better ones. The
    95 % interval is Fisher's, with the variance of Bonett and Wright (2000, Psychometrika 65).
    """
    from scipy.stats import spearmanr  # takes half a second

    *earlier, last = results.rungs
    found = []
    for rung in earlier:
        both = [(one.score_at(rung), one.score_at(last)) for one in results.trials]
        known = [pair for pair in both if not any(map(math.isnan, pair))]
        if len(known) < FEWEST_PAIRS or min(len({*some}) for some in zip(*known, strict=True)) < 2:
            continue
        rho = float(spearmanr(known).statistic)
        half = Z_95 * math.sqrt((1 + rho**2 / 2) / (len(known) - 3))
        middle = math.atanh(rho * (1 - 1e-9))  # finite where the ranks are the same
        found.append((rung, len(known), rho, math.tanh(middle - half), math.tanh(middle + half)))
    return found


def _began(row: Row) -> float:
    return datetime.fromisoformat(row["written_at"]).timestamp() - _seconds(row)


def _seconds(row: Row) -> float:
    """Return the time up to a row, of generations and held-out scores, without pauses."""
    return float(row["budget"]["wall_s"] + row["budget"]["held_out"].get("wall_s", 0.0))


def _label(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _csv(rows: Any) -> str:
    made: list[Mapping[str, Any]] = [*rows]
    text, names = io.StringIO(), dict.fromkeys(name for row in made for name in row)
    writer = csv.DictWriter(text, [*names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()
