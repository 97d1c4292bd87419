"""The report of a sweep, from its folder alone: a page, a figure, a table of runs, the best config.

`trials.csv` has a row for each run and rung of the trials that have ended, and `configspace.csv`
the space, in the format that DeepCAVE reads and pandas as well.
"""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from germline.config.config_files import as_yaml
from germline.errors import count_of
from germline.record.atomic_files import write_atomically
from germline.record.early_stopping import signed_score
from germline.report.diff import changed_settings
from germline.report.heat_map import HeatMap
from germline.report.html_page import render_template
from germline.report.text_format import Table, number, percent
from germline.studies.sweep_importance import Importance, importances
from germline.studies.sweep_landscape import (
    heat_maps,
    is_broken,
    is_hacked,
    parallel_coordinates,
    points_at,
    rank_correlations,
)
from germline.studies.sweep_results import SweepResults, SweepTrial, score_at
from germline.studies.sweep_space import Dimension, overrides_of

MOST_SHOWN = 10
"""Trials in the table of the best ones."""

NOT_TESTED = "Not tried with new run seeds"

ABOUT = (
    "Scores are held-out scores, ± the standard deviation over the runs of a cell. A run is broken "
    "if its answers are, compared with those at the start, and hacked if its reward rose although "
    "they are or the metric got worse. Importance (PED-ANOVA) is that for being among the best "
    "trials, with 95 % bootstrap intervals over trials; a setting matters if it is above 95 % of "
    "the importances with shuffled scores."
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
    if report.maps:
        from germline.report import plots

        plots.draw_heat_maps(folder / "sweep.png", f"{report.title}: {report.metric}", report.maps)
    return folder / "sweep.html"


class SweepReport:
    """What a report says about the trials of a sweep in their present state."""

    def __init__(self, results: SweepResults) -> None:
        self.space = results.space
        self.results = results
        self.title = f"sweep of {Path(results.facts['config']).stem}"
        scored = [run for one in results.trials for run in one.runs if run.scores]
        self.metric = f"held-out {scored[0].metric}, {scored[0].better}" if scored else "no score"

    @cached_property
    def rung(self) -> int:
        """The place of the last rung that many trials reached; later ones have the best alone."""
        reached = [len(points_at(self.results, rung)) for rung in self.results.rungs]
        return max(n for n, some in enumerate(reached) if some > max(reached) / 2 or not n)

    @cached_property
    def importances(self) -> list[Importance]:
        """The importance of every setting at `rung`."""
        return importances(self.space, points_at(self.results, self.results.rungs[self.rung]))

    @cached_property
    def axes(self) -> list[Dimension]:
        """The settings of every trial: sigma, the learning rate, others by their importance."""
        order = [one.name for one in self.importances]
        return sorted(
            (one for one in self.space.dimensions if not one.when),
            key=lambda one: (
                not one.name.startswith("strategy.sigma"),
                one.name != "strategy.learning_rate",
                order.index(one.name) if order else 0,
            ),
        )

    @cached_property
    def maps(self) -> list[HeatMap]:
        """The heat maps of the first two axes."""
        return heat_maps(self.results, self.axes)

    @property
    def unimportant(self) -> list[str]:
        """The settings that are not shown to matter, with what was tried."""
        values = {one.name: one.values for one in self.space.dimensions}
        return [
            f"{one.name} ({', '.join(map(str, values[one.name]))}): {percent(one.share)} of the "
            "importance, which chance may explain"
            for one in self.importances
            if not one.matters
        ]

    def tables(self) -> dict[str, Table]:
        """Return the tables, by their titles."""
        rollouts = f"{self.results.rungs[self.rung]:,}"
        found = {
            "Best trials": self.best_trials(),
            f"Importance after {rollouts} rollouts": Table(
                ("setting", "share", "95 % interval", "matters"),
                [
                    (
                        one.name,
                        percent(one.share),
                        f"{percent(one.low)} to {percent(one.high)}",
                        "yes" if one.matters else "not shown",
                    )
                    for one in self.importances
                ],
            ),
            "Rank correlation with the last rung": Table(
                ("rung, rollouts", "runs", "Spearman's rho", "95 % interval"),
                [
                    (f"{rung:,}", str(runs), number(rho), f"{number(low)} to {number(high)}")
                    for rung, runs, rho, low, high in rank_correlations(self.results)
                ],
            ),
        }
        return {title: table for title, table in found.items() if table.rows}

    def best_trials(self) -> Table:
        """Return the best complete trials."""
        rows = []
        for one in self.results.ranked[:MOST_SHOWN]:
            scores = sorted(run.scores[-1].mean for run in one.counted)
            spread = number(statistics.stdev(scores)) if len(scores) > 1 else "-"
            ends = f"{number(scores[0])} to {number(scores[-1])}"
            shrunk = self._shown(self.results.shrunk(one))
            rows.append(
                [
                    *(str(one.number), one.sampler, " ".join(overrides_of(dict(one.settings)))),
                    *(number(statistics.fmean(scores)), str(len(scores)), ends, spread, shrunk),
                    self._shown(one.unseen),
                ]
            )
        names = ("trial", "sampler", "settings", "score", "seeds", "seeds from, to", "sd", "shrunk")
        return Table((*names, "unseen rows, new seeds"), rows)

    def _shown(self, score: float) -> str:
        """Format a score that is signed so that higher is better."""
        return number(self.results.sign * score)

    def page(self) -> str:
        """Return the report as a page."""
        return render_template(
            "sweep.html",
            title=f"germline {self.title}",
            metric=self.metric,
            summary=self.results.summary(),
            tables=self.tables(),
            maps={f"{one.y} by {one.x}, {one.title}": one for one in self.maps},
            charts=[parallel_coordinates(self.results, self.axes)] if self.results.trials else [],
            unimportant=self.unimportant,
            best=self.best_config(),
            about=ABOUT,
        )

    def best_config(self) -> str:
        """Return the config of the best trial with the reasons for its values, if there is one."""
        if not self.results.ranked:
            return ""
        best = self.results.ranked[0]
        config = best.runs[0].config
        record = config.record.model_copy(update={"shared": None})
        settings = changed_settings(config.model_copy(update={"record": record}))
        settings.pop("seed")
        text = as_yaml(settings, allow_unicode=True, width=88)
        return "\n".join([*(f"# {line}" for line in self._reasons(best)), text])

    def _reasons(self, best: SweepTrial) -> list[str]:
        results = self.results
        seeds = count_of(len(best.signed_scores), "run seeds")
        shrunk = self._shown(results.shrunk(best))
        others = [str(one) for one in results.tied if one != best.number]
        tied = f", tied with {', '.join(others)}" if others else ""
        rank = f"the best of {count_of(len(results.complete), 'complete trials')}{tied}"
        lines = [
            f"Trial {best.number}, {rank} ({self.metric}): {self._shown(best.mean)} over {seeds}, "
            f"{shrunk} shrunk"
        ]
        again = f"{self._shown(best.again)}, on unseen rows {self._shown(best.unseen)}"
        is_tested = best in results.tested
        lines.append(f"With new run seeds: {again}" if is_tested else NOT_TESTED)
        weights = {one.name: one for one in self.importances}
        top = results.ranked[: len(results.ranked) // 4]
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
        rows = [
            {
                "config_id": trial.number,
                **{name: trial.settings.get(name) for name in names},
                "metric:score [-inf; +inf] (maximize)": signed_score(score),
                "budget": rung,
                "seed": run.config.seed,
                "start_time": datetime.fromisoformat(run.rows[0]["written_at"]).timestamp(),
                "end_time": datetime.fromisoformat(run.rows[-1]["written_at"]).timestamp(),
                "status": "success",
                "score": score.mean,
                "broken": int(is_broken(run.scores[0], score)),
                "hacked": int(is_hacked(run.scores[0], score)),
                "sampler": trial.sampler,
                "state": trial.state,
            }
            for trial in self.results.trials
            if trial.state != "running"
            for run in trial.runs
            for rung in self.results.rungs
            if (score := score_at(run, rung))
        ]
        return _csv(rows, ["config_id", *names])

    def space_csv(self) -> str:
        """Return the space as DeepCAVE's converter of data frames reads it."""
        rows = []
        for one in self.space.dimensions:
            row: dict[str, Any] = {
                "name": one.name,
                "type": "integer" if one.scale == "int" else "float",
            }
            if one.scale == "values":
                row |= {"type": "categorical", "default": one.values[0], "ordered": False}
                row |= {f"item_{n}": value for n, value in enumerate(one.values)}
            else:
                row |= {"lower": one.values[0], "upper": one.values[1], "log": one.scale == "log"}
            rows.append(row)
        return _csv(rows, ["name", "type", "lower", "upper", "log", "default", "ordered"])


def _csv(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> str:
    """Return rows with the columns that any of them has, some columns before others."""
    text = io.StringIO()
    names = dict.fromkeys([*first, *(name for row in rows for name in row)])
    writer = csv.DictWriter(text, [*names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
