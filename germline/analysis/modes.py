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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline import noise
from germline.analysis.groups import lines
from germline.analysis.request import Request, Result, cell
from germline.analysis.scorer import (
    COLUMNS,
    Point,
    PointScore,
    Values,
    certain_sign,
    mean_and_interval,
    open_scorer,
)
from germline.analysis.scorer import ScoreSettings as Settings
from germline.report.charts import Chart
from germline.types import GermlineError

LINE = tuple(step / 10 for step in range(11))

SHARES: Mapping[int, Sequence[tuple[float, ...]]] = {
    1: [(t,) for t in (*LINE, 1.25, 1.5)],
    2: [(1 - t, t) for t in LINE],
    3: [((3 - b - c) / 3, b / 3, c / 3) for c in range(4) for b in range(4 - c)],
}
"""The shares of one, two or three models in each point."""


def measure(request: Request, settings: Settings) -> Result:
    """Score the points between one, two or three models."""
    models, labels = request.opened, [one.label for one in request.opened]
    if len(models) > 3:
        raise GermlineError(
            f"modes takes 1 model (its delta is scaled), 2 (a line) or 3 (a plane), found "
            f"{len(models)}: name fewer"
        )
    is_line = len(models) < 3
    title = " to ".join(["start", *labels][-2:]) if is_line else ", ".join(labels)
    scored: dict[tuple[float, ...], PointScore] = {}
    with open_scorer(request, settings) as scorer:
        for shares in SHARES[len(models)]:
            parts = zip(shares, models, strict=True)
            scored[shares] = scorer.scores_at(Point(tuple(part for part in parts if part[0])))
    names = ("share",) if len(models) == 1 else ("first", "second", "third")[: len(models)]
    rows = [
        {
            **dict(zip(names, shares, strict=True)),
            "line": title if is_line else f"{shares[2]:.2g} {labels[2]}",
            **one.row,
        }
        for shares, one in scored.items()
    ]
    x, x_label = names[:2][-1], f"share of {labels[:2][-1]}"
    titles = {"score": "score", "kl_per_token": "KL per token"}
    charts = [Chart(name, "", x_label, lines(rows, "line", x, y)) for y, name in titles.items()]
    values = {shares: one.values for shares, one in scored.items()}
    if is_line:
        line = [scorer.sign * values[shares] for shares in SHARES[len(models)][: len(LINE)]]
        shape = line_shape(np.array(line))
        found, notes = {"shape": shape}, [f"{title}: {shape_text(shape)}"]
    else:
        found, notes = {}, _averages(values, scorer.sign)
    title = f"Scores {'from' if is_line else 'between'} {title}"
    return Result(title, (*names, *COLUMNS), rows, charts, found, notes)


def _averages(values: Mapping[tuple[float, ...], Values], sign: float) -> list[str]:
    """Compare the mean of three models with the mean of their scores, and with the best one."""
    *corners, mean = (values[at] for at in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1 / 3, 1 / 3, 1 / 3)))
    best = max(corners, key=lambda one: sign * float(np.nanmean(one)))
    others = {"mean": np.mean(corners, axis=0), "best": best}
    return [
        f"the average of the weights scores {cell(mean_and_interval(mean - other))} beside the "
        f"{name} of the three"
        for name, other in others.items()
    ]


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
