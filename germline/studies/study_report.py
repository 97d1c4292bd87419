"""The report of a study: tables, sentences, a figure, and all numbers as JSON."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from germline.evaluation.statistics import FEWEST_SEEDS
from germline.record.atomic_files import write_atomically, write_json
from germline.report.charts import Chart, Series, mean_lines
from germline.report.html_page import render_template
from germline.report.text_format import (
    Table,
    number,
    over_seeds,
    seed_difference_text,
    signed,
    with_interval,
)
from germline.studies.study_results import AXES, MethodResult, Pair, StudyResults, TaskResult
from germline.types import GermlineError

COSTS = {
    "rollouts": "rollouts",
    "tokens": "tokens generated",
    "forward_tokens": "tokens forward",
    "backward_tokens": "tokens backward",
    "forward_flops": "FLOPs forward",
    "backward_flops": "FLOPs backward",
    "cpu_s": "CPU s",
    "wall_s": "clock s",
    "peak_mb_host": "peak MB",
    "peak_mb_device": "peak MB of device",
}
"""Columns of the table of costs, by the names of `CellResult.cost`."""

TO_TARGET = {"rollouts": ("rollouts", 1), "tokens": ("tokens", 1), "CPU s": ("cpu_minutes", 60)}
"""What is shown of the way to a target, as names of `amounts`, and the factor to its unit."""

ABOUT = (
    "Means over run seeds, from five seeds on with 95 % intervals (Student's t). Differences of "
    "methods are paired by seed and not corrected for the number of pairs; probabilities have "
    "stratified bootstrap intervals. Costs are of training, without held-out scores; peak memory "
    "is that of a run's process. Until the target: the median of the seeds that reach it."
)

Columns = Mapping[str, Callable[[MethodResult], str]]


def tables(results: StudyResults) -> dict[str, Table]:
    """Return the tables of the report, by their titles."""
    made = {
        "Held-out scores": scores(results),
        "Cost of a run": costs(results),
        "Pairs of methods": pairs(results),
        "Score and KL divergence from the start": front(results),
    }
    return {title: table for title, table in made.items() if table.rows}


def scores(results: StudyResults) -> Table:
    """Return the scores before, during and after training, and how the models changed."""
    columns: Columns = {
        "seeds": lambda one: str(len(one.counted)),
        "before": lambda one: number(one.statistics["start"].mean),
        **{f"after {n:,}": partial(_after, n) for n in results.study.file.after},
        "end": lambda one: over_seeds(one.statistics["end"]),
        "IQM": lambda one: number(one.middle),
        "sd": lambda one: number(one.deviation),
        "best": lambda one: over_seeds(one.statistics["best"]),
        "examples better, worse": _changed,
        "KL per token": lambda one: number(one.kl),
        "behavior": _behavior,
    }
    return _table(results, columns)


def costs(results: StudyResults) -> Table:
    """Return what a run of each method spends, and what it had spent at the target."""
    columns: dict[str, Callable[[MethodResult], str]] = {
        title: partial(_cost, name) for name, title in COSTS.items()
    }
    if sweeps := results.study.sweeps:
        columns["rollouts of tuning"] = lambda one: number(
            sweeps.get(one.name, {"spent": {"rollouts": 0.0}})["spent"]["rollouts"]
        )
    made = _table(results, columns)
    if not any(task.target is not None for task in results.tasks):
        return made
    reached = [_to_target(task.target, one) for task, one in results.methods]
    rows = [(*row, *more) for row, more in zip(made.rows, reached, strict=True)]
    return Table([*made.columns, *(f"{name} to target" for name in TO_TARGET)], rows)


def pairs(results: StudyResults) -> Table:
    """Return the differences of each pair of methods."""
    columns = ("task", "methods", "difference of the ends", "probability that the first is better")
    rows = [
        (
            task.name,
            f"{pair.first.name} - {pair.second.name}",
            _difference(pair),
            with_interval(*pair.probability),
        )
        for task in results.tasks
        for pair in task.pairs
    ]
    return Table(columns, rows)


def _difference(pair: Pair) -> str:
    if pair.difference is None:
        return "one seed"
    seeds = min(pair.difference.seeds)
    if seeds < FEWEST_SEEDS:
        return f"{signed(pair.difference.mean)} (few run seeds: {seeds})"
    return seed_difference_text(pair.difference)


def accuracies(results: StudyResults) -> Table:
    """Return the last scores of methods side by side (Qiu et al. 2025, arXiv 2509.24372).

    Shares are in percent; ± is the standard deviation over seeds.
    """
    methods = results.study.methods
    rows = []
    for task in (one for one in results.tasks if one.methods):
        known = {one.name: one for one in task.methods}
        ends = [(run.scores[0], run.scores[-1]) for one in task.methods for run in one.counted]
        scale = 100 if all(end.proportion for _, end in ends) else 1
        cells = [_mean_and_deviation(known.get(name), scale) for name in methods]
        rows.append([task.name, number(scale * ends[0][0].mean), *cells])
    return Table(["task", "before", *methods], rows)


def coverage(results: StudyResults) -> Table:
    """Return pass@k and other reductions of several samples, as `germline eval` printed them."""
    found = dict.fromkeys(
        name
        for _, one in results.methods
        for run in one.counted
        for name in run.evaluation.get("at_k", {})
    )
    if not found:
        raise GermlineError(
            "compare --table coverage: no run was evaluated with several samples: give the study "
            "eval: ['--samples 16']"
        )
    return _table(results, {name: partial(_at_k, name) for name in found})


def forgetting(results: StudyResults) -> Table:
    """Return the scores of each of `retained` before and after training; never their mean."""
    ends = (run.scores[-1] for _, one in results.methods for run in one.counted)
    found = dict.fromkeys(name for end in ends for name in end.retained)
    if not found:
        raise GermlineError(
            "compare --table forgetting: the runs have nothing in `retained`: give the tasks of "
            "the study settings such as 'retained={sums: {task: arithmetic}}'"
        )
    return _table(results, {name: partial(_retained, name) for name in found})


PAPER_TABLES = {"qiu": accuracies, "cost": costs, "coverage": coverage, "forgetting": forgetting}
"""The tables that papers print, by their names on the command line."""


def summary(results: StudyResults) -> list[str]:
    """Return a sentence per task: which method ends best, and which differences are shown."""
    return [_sentence(task) for task in results.tasks if len(task.methods) > 1]


def _sentence(task: TaskResult) -> str:
    best = task.methods[0]
    pairs = [pair for pair in task.pairs if pair.first is best]
    worse = [pair.second.name for pair in pairs if pair.is_shown]
    level = [pair.second.name for pair in pairs if not pair.is_shown]
    parts = [f"{best.name} ends better than {' and '.join(worse)}"] if worse else []
    if level:
        parts.append(f"no difference shown between {best.name} and {' and '.join(level)}")
    fewest = min(len(one.counted) for one in task.methods)
    few = f"; few run seeds: {fewest}" if fewest < FEWEST_SEEDS else ""
    ends = ", ".join(f"{one.name} {number(one.statistics['end'].mean)}" for one in task.methods)
    return f"{task.name}: {'; '.join(parts)} ({best.metric}: {ends}{few})."


def write_report(results: StudyResults, failures: Sequence[str] = ()) -> Path:
    """Write compare.json, .md, .html and the figure into the study's folder; return the page."""
    out, name = results.study.out, results.study.name
    out.mkdir(parents=True, exist_ok=True)
    axis = next(iter(results.study.file.budget.limits), "rollouts")
    charts = [_chart(task.name, task.target, axis, results) for task in results.tasks]
    curves = [one for one in charts if one.series]
    write_json(out / "compare.json", as_json(results, failures))
    write_atomically(out / "compare.md", _markdown(results, axis, failures).encode())
    page = render_template(
        "study.html",
        title=name,
        budget=_budget(results),
        lines=[*summary(results), *results.notes, *failures],
        curves=curves,
        tables=tables(results),
        about=ABOUT,
    )
    write_atomically(out / "compare.html", page.encode("utf-8", "replace"))
    if curves:
        from germline.report import plots

        title = f"{name}\nHeld-out score, mean and range of the seeds"
        plots.draw_panels(out / "compare.png", title, curves)
    return out / "compare.html"


def as_json(results: StudyResults, failures: Sequence[str] = ()) -> dict[str, Any]:
    """Return all numbers of the report."""
    return {
        "study": results.study.file.model_dump(mode="json"),
        "out": str(results.study.out),
        "summary": summary(results),
        "notes": results.notes,
        "failures": list(failures),
        "methods": [
            {
                "task": task.name,
                "method": one.name,
                **one.as_json(),
                "kl_per_token": one.kl,
                "dominated_by": [other.name for other in task.dominating(one)],
                "interquartile_mean": one.middle,
                "deviation": one.deviation,
                "runs": [
                    {
                        "run": str(run.path),
                        "curve": [{**at, "score": score.mean} for at, score in run.curve],
                        "cost": run.cost,
                        "examples_better": run.changed[0],
                        "examples_worse": run.changed[1],
                        "behavior": run.behavior and run.behavior.word,
                        "evaluation": run.evaluation,
                    }
                    for run in one.counted
                ],
            }
            for task, one in results.methods
        ],
        "pairs": [
            {
                "task": task.name,
                "first": pair.first.name,
                "second": pair.second.name,
                "difference": pair.difference and pair.difference.mean,
                "difference_interval_95": pair.difference and pair.difference.interval,
                "difference_is_shown": pair.is_shown,
                "probability": pair.probability[0],
                "probability_interval_95": pair.probability[1],
            }
            for task in results.tasks
            for pair in task.pairs
        ],
    }


def front(results: StudyResults) -> Table:
    """Return score and KL of each method whose KL is known, and which methods dominate it."""

    def place(task: TaskResult, one: MethodResult) -> str:
        better = ", ".join(other.name for other in task.dominating(one))
        return f"dominated by {better}" if better else "on it"

    columns = ("task", "method", "end", "KL per token", "Pareto front")
    rows = [
        (task.name, one.name, over_seeds(one.statistics["end"]), number(one.kl), place(task, one))
        for task, one in results.methods
        if one.kl is not None
    ]
    return Table(columns, rows if len(rows) > 1 else [])


def _budget(results: StudyResults) -> str:
    limits = results.study.file.budget.limits.items()
    budget = ", ".join(f"{limit:,.12g} {AXES[name]}" for name, limit in limits) or "none"
    return f"Budget of a run: {budget}. Run seeds: {', '.join(map(str, results.study.seeds))}."


def _markdown(results: StudyResults, axis: str, failures: Sequence[str]) -> str:
    parts = [f"# {results.study.name}", _budget(results)]
    lines = [*summary(results), *results.notes, *failures]
    parts += ["\n".join(f"- {line}" for line in lines)] if lines else []
    for title, table in tables(results).items():
        parts += [f"## {title}", table.markdown()]
    parts += [f"![Held-out score over {AXES[axis]}, mean and range of the seeds](compare.png)"]
    return "\n\n".join([*parts, ABOUT]) + "\n"


def _chart(name: str, target: float | None, axis: str, results: StudyResults) -> Chart:
    """Chart a task: the mean of each method with the band from the worst to the best seed."""
    methods = [method for task, method in results.methods if task.name == name]
    rows = [
        {"method": one.name, axis: cost, "score": score}
        for one in methods
        for cost, scores in one.over(axis)
        for score in scores
    ]
    series = mean_lines(rows, "method", axis, "score")
    if target is not None and series:
        longest = max(one.x[-1] for one in series)
        label = f"target {number(target)}"
        series.append(Series(label, [0, longest], [target] * 2, color=6, style="dashed"))
    metric, better = (methods[0].metric, methods[0].counted[0].better) if methods else ("", "")
    caption = f"{better.capitalize()}." if better else ""
    return Chart(f"{name}: {metric}", caption, AXES[axis], series)


def _table(results: StudyResults, columns: Columns) -> Table:
    """Return a table of methods, without the columns that no method has a value for."""
    cells = {title: [value(one) for _, one in results.methods] for title, value in columns.items()}
    shown = {title: some for title, some in cells.items() if {*some} - {"-", ""}}
    names = [[task.name, one.name] for task, one in results.methods]
    rows = [[*name, *(some[at] for some in shown.values())] for at, name in enumerate(names)]
    return Table(["task", "method", *shown], rows)


def _after(rollouts: int, one: MethodResult) -> str:
    known = [score for run in one.counted if (score := run.score_after(rollouts)) is not None]
    return number(statistics.fmean(known)) if len(known) == len(one.counted) else "-"


def _behavior(one: MethodResult) -> str:
    """Say the verdicts about answers, the most frequent first, with how many runs have each."""
    words = Counter(run.behavior.word for run in one.counted if run.behavior)
    counts = [
        f"{word} ({count})" if len(words) > 1 else word for word, count in words.most_common()
    ]
    return ", ".join(counts)


def _changed(one: MethodResult) -> str:
    changed = zip(*(run.changed for run in one.counted), strict=True)
    return ", ".join(number(statistics.fmean(some)) for some in changed)


def _cost(name: str, one: MethodResult) -> str:
    value = one.mean_cost(name)
    return "-" if not value else f"{value:.2e}" if value >= 1e8 else number(value)


def _at_k(name: str, one: MethodResult) -> str:
    return number(one.evaluated("at_k", name, "mean"))


def _retained(name: str, one: MethodResult) -> str:
    both = ([run.scores[at].retained.get(name) for run in one.counted] for at in (0, -1))
    means = [[score.mean for score in some if score] for some in both]
    return " -> ".join(number(statistics.fmean(some)) if some else "-" for some in means)


def _to_target(target: float | None, one: MethodResult) -> list[str]:
    if target is None:
        return ["-"] * len(TO_TARGET)
    reached = [at for run in one.counted if (at := run.reached(target)) is not None]
    if not reached:
        return ["never"] * len(TO_TARGET)
    few = "" if len(reached) == len(one.counted) else f" ({len(reached)} of {len(one.counted)})"
    return [
        f"{number(unit * statistics.median(at[name] for at in reached))}{few}"
        for name, unit in TO_TARGET.values()
    ]


def _mean_and_deviation(one: MethodResult | None, scale: float) -> str:
    if one is None:
        return "-"
    deviation = "" if one.deviation is None else f" ± {number(scale * one.deviation)}"
    return f"{number(scale * one.statistics['end'].mean)}{deviation}"
