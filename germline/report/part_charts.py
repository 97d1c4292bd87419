"""The curves of the parts of a reward: of members in training, and of the center when held out."""

import math

from germline.config.kl_penalty import KL_PART
from germline.record.atomic_files import Row
from germline.report.curves import generations
from germline.report.run_facts import LONGEST_NAME, RunFacts, bounded_text
from germline.report.svg_charts import Chart, Curve, Mark, Points, thin_out
from germline.report.text_format import number, scored_as
from germline.types import HeldOutScore


def part_charts(run: RunFacts) -> list[Chart]:
    """Draw each part of the rubric; no chart where one part is the whole reward."""
    rows = [row for row in run.rows if row.get("parts")]
    scores = [score for score in run.scores if score.parts]
    names = dict.fromkeys(
        name
        for parts in (*(row["parts"] for row in rows), *(score.parts for score in scores))
        for name in parts
    )
    return [_chart(run, place, name, rows, scores) for place, name in enumerate(names)]


def _chart(
    run: RunFacts, place: int, name: str, all_rows: list[Row], all_scores: list[HeldOutScore]
) -> Chart:
    rows = [row for row in all_rows if row["parts"].get(name) is not None]
    scores = [score for score in all_scores if math.isfinite(score.parts.get(name, math.nan))]
    values = [row["parts"][name] for row in rows]
    means = [score.parts[name] for score in scores]
    graded = f"{run.config.method.graded}s"
    who, shown = scored_as(run.config), bounded_text(name, LONGEST_NAME)
    marks: list[Mark] = []
    if values:
        marks.append(Curve(f"{graded}, training", "mean", generations(rows), thin_out(values)))
    if means:
        x = [float(score.generation) for score in scores]
        named = sorted({0, len(means) - 1})
        marks.append(Points(f"{who}, held-out", "held", x, means, means, means, named))
    ends = " and ".join(
        f"of {of} from {number(some[0])} to {number(some[-1])}"
        for of, some in ((f"the {graded}", values), (f"the {who}, held-out,", means))
        if some
    )
    return Chart(
        name=f"part-{place}",
        caption=f"{shown}, a part of the reward{_role(run, name)}: mean of the {graded} on the "
        f"training examples of each generation, and of the {who} on held-out examples.",
        alt=f"Line chart of {shown}, a part of the reward: {ends}.",
        x_label="generation",
        y_label=shown,
        marks=marks,
    )


def _role(run: RunFacts, name: str) -> str:
    """Return what the settings say about a part, in brackets; begins with a space."""
    task = run.config.task
    if name == KL_PART and task.kl_coef is not None:
        return (
            f" (divergence from the start model, in nats per {task.kl_per}; task.kl_coef="
            f"{number(task.kl_coef)})"
        )
    if name in task.scorers:
        weight = number(task.scorers[name].weight).replace("-", "−")
        return f" (weight {weight})"
    return ""
