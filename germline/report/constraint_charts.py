"""The curves of a run whose reward weighs a cost by lambda: lambda, and the cost of the center."""

from germline.config import SafeAlignment
from germline.report.curves import generations
from germline.report.run_facts import RunFacts
from germline.report.svg_charts import Chart, Curve, thin_out
from germline.report.text_format import number


def multiplier(run: RunFacts) -> Chart | None:
    """Draw lambda by generation; None if it is constant."""
    caption = "Lambda, the weight of the cost in the reward, in each generation."
    return _chart(run, "lambda", caption)


def center_cost(run: RunFacts) -> Chart | None:
    """Draw the mean cost of the center by generation; None if it was not measured."""
    task = run.config.task
    limit = task.cost_limit if isinstance(task, SafeAlignment) else 0.0
    caption = (
        "Mean cost of the center's completions in the batch of each generation. Lambda grows while "
        f"it is above {number(limit)} (task.cost_limit)."
    )
    return _chart(run, "center_cost", caption)


def _chart(run: RunFacts, name: str, caption: str) -> Chart | None:
    rows = [row for row in run.rows if row.get(name) is not None]
    values = [row[name] for row in rows]
    if len(set(values)) < 2:
        return None
    title = name.replace("_", " ")
    return Chart(
        name=name.replace("_", "-"),
        caption=caption,
        alt=f"Line chart of {title} over {len(values)} generations, from {number(values[0])} to "
        f"{number(values[-1])}.",
        x_label="generation",
        y_label=title,
        marks=[Curve(title, "mean", generations(rows), thin_out(values))],
    )
