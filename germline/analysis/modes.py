"""Scores between models: one delta scaled, the line between two models, the plane of three.

    one model      start + t (model - start), t from 0 to 1.5
    two models     (1 - t) A + t B, t from 0 to 1
    three models   w1 A + w2 B + w3 C in thirds, w1 + w2 + w3 = 1

The drop of a line below the straight line, with the score v_e(t) of example e, is

    (1)  D_e(t) = (1 - t) v_e(0) + t v_e(1) - v_e(t)

and the barrier its largest mean (Frankle et al. 2020, arXiv 1912.05671, with scores for errors). As
the largest of noisy values is above 0 without any barrier, one half of the examples chooses t and
the other half measures (1), and the other way around. At t = 1/2, D > 0 says that the line is flat
first and then sharp, D < 0 that the first half of the way brings most of the change.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline import noise
from germline.analysis.groups import lines
from germline.analysis.request import Request, Result, cell
from germline.analysis.scorer import (
    COLUMNS,
    Point,
    WeightsScorer,
    certain_sign,
    mean_and_interval,
    open_scorer,
)
from germline.analysis.scorer import ScoreSettings as Settings
from germline.analysis.weights import Weights
from germline.record.atomic_files import Row
from germline.report.charts import Chart
from germline.types import GermlineError

LINE = tuple(step / 10 for step in range(11))
SCALING = (*LINE, 1.25, 1.5)
THIRDS = tuple((3 - b - c, b, c) for c in range(4) for b in range(4 - c))


def measure(request: Request, settings: Settings) -> Result:
    """Score the points between one, two or three models."""
    models = request.opened
    if len(models) > 3:
        raise GermlineError(
            f"modes takes 1 model (its delta is scaled), 2 (a line) or 3 (a plane), found "
            f"{len(models)}: name fewer"
        )
    with open_scorer(request, settings) as scorer:
        return _plane(scorer, models) if len(models) == 3 else _line(scorer, models)


def _line(scorer: WeightsScorer, models: Sequence[Weights]) -> Result:
    title = f"{'start' if len(models) == 1 else models[0].label} to {models[-1].label}"
    places = SCALING if len(models) == 1 else LINE
    scored = {t: scorer.scores_at(_mixed([1 - t, t][-len(models) :], models)) for t in places}
    shape = line_shape(scorer.sign * np.array([scored[t].values for t in LINE]))
    rows = [{"line": title, "at": t, **one.row} for t, one in scored.items()]
    return Result(
        f"Scores from {title}",
        {"at": "at", **COLUMNS},
        rows,
        _charts("at", rows, "share of the way"),
        {"shape": shape},
        [f"{title}: {shape_text(shape)}"],
    )


def line_shape(values: Float64[np.ndarray, "points examples"]) -> dict[str, Any]:
    """Measure the shape of a line, at the points of `LINE`, whose values are better when higher.

    Returns the barrier, the point `at` which all examples have the largest drop, and the drop
    `half` way, with intervals and signs that chance does not explain.
    """
    values = values[:, np.isfinite(values).all(axis=0)]
    at = np.array(LINE)[:, None]
    drops = (1 - at) * values[0] + at * values[-1] - values
    order = noise.epoch_permutation(0, "barrier", 0, drops.shape[1])
    halves = order[::2], order[1::2]
    parts = [
        drops[1 + int(drops[1:-1][:, other].mean(axis=1).argmax()), some]
        for some, other in (halves, halves[::-1])
    ]
    chosen, middle = np.concatenate(parts), drops[len(LINE) // 2]
    return {
        "barrier": mean_and_interval(chosen),
        "is_barrier": certain_sign(chosen) > 0,
        "at": LINE[int(drops.mean(axis=1).argmax())],
        "half": mean_and_interval(middle),
        "half_sign": certain_sign(middle),
    }


def shape_text(shape: dict[str, Any]) -> str:
    """Say the shape of a line in one sentence."""
    bends = {1: "flat, then sharp", -1: "most of the change comes first", 0: "no bend is certain"}
    return (
        f"{'a barrier' if shape['is_barrier'] else 'no barrier'}, drop {cell(shape['barrier'])} "
        f"(largest at {shape['at']:g}); half way {cell(shape['half'])} below the straight line: "
        f"{bends[shape['half_sign']]}"
    )


def _plane(scorer: WeightsScorer, models: Sequence[Weights]) -> Result:
    names = [one.label for one in models]
    scored = {at: scorer.scores_at(_mixed([n / 3 for n in at], models)) for at in THIRDS}
    corners = [scored[at] for at in ((3, 0, 0), (0, 3, 0), (0, 0, 3))]
    best = max(corners, key=lambda one: scorer.sign * one.score[0]).values
    others = {"mean": np.mean([one.values for one in corners], axis=0), "best": best}
    rows = [
        {**dict(zip(names, at, strict=True)), "line": f"{at[2]}/3 {names[2]}", **one.row}
        for at, one in scored.items()
    ]
    return Result(
        f"Scores between {', '.join(names)}",
        {**{name: name for name in names}, **COLUMNS},
        rows,
        _charts(names[1], rows, f"thirds of {names[1]}"),
        notes=[
            f"the average of the weights scores "
            f"{cell(mean_and_interval(scored[1, 1, 1].values - other))} beside the {name} of the "
            "three"
            for name, other in others.items()
        ],
    )


def _mixed(coefficients: Sequence[float], models: Sequence[Weights]) -> Point:
    return Point(tuple((c, one) for c, one in zip(coefficients, models, strict=True) if c))


def _charts(x: str, rows: Sequence[Row], x_label: str) -> list[Chart]:
    titles = {"score": "score", "kl_per_token": "KL per token"}
    return [Chart(title, "", x_label, lines(rows, "line", x, y)) for y, title in titles.items()]
