"""Which methods of a study have the best score for their KL divergence from the start.

A method is dominated by another one whose mean score is at least as good at no more KL per token,
and better in one of the two. The others are the Pareto front.
"""

import statistics

from germline.report.charts import Chart, Series
from germline.report.text_format import Table, number, over_seeds
from germline.studies.study_results import MethodResult, StudyResults, TaskResult

FIGURE = "compare-kl.png"
"""The figure of score and KL, in the folder of the study."""


def front(results: StudyResults) -> Table:
    """Return score and KL of each method whose KL is known, and which methods dominate it."""

    def place(task: TaskResult, one: MethodResult) -> str:
        better = ", ".join(other.name for other in task.dominating(one))
        return f"dominated by {better}" if better else "on it"

    columns = ("task", "method", "end", "KL per token", "Pareto front")
    rows = [
        (task.name, one.name, over_seeds(one.statistics["end"]), number(one.kl), place(task, one))
        for task, one in _with_kl(results)
    ]
    return Table(columns, rows if len(rows) > 1 else [])


def _with_kl(results: StudyResults) -> list[tuple[TaskResult, MethodResult]]:
    return [(task, one) for task, one in results.methods if one.kl is not None]


def front_charts(results: StudyResults) -> list[Chart]:
    """Chart score and KL of the methods on each task where two or more are known."""
    charts = []
    for task in results.tasks:
        series, on_front = [], []
        for color, one in enumerate(one for of, one in _with_kl(results) if of is task):
            ends = [run.scores[-1].mean for run in one.counted]
            mean, kl = statistics.fmean(ends), one.kl or 0.0
            point = ([kl], [mean], [min(ends)], [max(ends)])
            series.append(Series(one.name, *point, color=color, style="points"))
            if not task.dominating(one):
                on_front.append((kl, mean))
        if len(series) > 1:
            x, y = zip(*sorted(on_front), strict=True)
            series.append(Series("Pareto front", x, y, color=6, style="dashed"))
            caption = f"{task.methods[0].counted[0].better.capitalize()}, and less KL is."
            title = f"{task.name}: {task.methods[0].metric}"
            charts.append(Chart(title, caption, "KL from the start, nats per token", series))
    return charts
