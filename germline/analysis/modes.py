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
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline import noise
from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    CELLS,
    Point,
    PointScore,
    ScoreSettings,
    WeightsScorer,
    certain_sign,
    interval_text,
    mean_and_interval,
    open_scorer,
    score_series,
)
from germline.analysis.weights import Weights
from germline.report.charts import Chart, Series
from germline.types import GermlineError

LINE = tuple(step / 10 for step in range(11))
SCALING = (*LINE, 1.25, 1.5)
THIRDS = tuple((3 - b - c, b, c) for c in range(4) for b in range(4 - c))


class Settings(ScoreSettings):
    """Settings of `germline analyze modes`."""


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
    points = [{"at": t, **one.as_json()} for t, one in scored.items()]
    charts = _charts("share of the way", [(title, [*scored], [*scored.values()])])
    rows = [(f"{t:g}", *one.cells) for t, one in scored.items()]
    note = f"{title}: {shape_text(shape)}"
    values = {"points": points, "shape": shape}
    return Result(f"Scores from {title}", ("at", *CELLS), rows, charts, values, [note])


def line_shape(values: Float64[np.ndarray, "points examples"]) -> dict[str, Any]:
    """Measure the shape of a line, at the points of `LINE`, whose values are better when higher.

    Returns the barrier with its interval, the point `at` which all examples have the largest drop,
    the drop `half` way with its interval, and the largest change of the score in one tenth of the
    way as a share of the whole change (`steepest`).
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
    chosen = np.concatenate(parts)
    barrier, interval = mean_and_interval(chosen)
    half, half_interval = mean_and_interval(drops[len(LINE) // 2])
    means = values.mean(axis=1).tolist()
    largest = max(abs(after - before) for before, after in pairwise(means))
    return {
        "barrier": barrier,
        "barrier_interval_95": interval,
        "is_barrier": certain_sign(chosen) > 0,
        "at": LINE[int(drops.mean(axis=1).argmax())],
        "half": half,
        "half_interval_95": half_interval,
        "half_sign": certain_sign(drops[len(LINE) // 2]),
        "steepest": largest / abs(means[-1] - means[0]) if means[-1] != means[0] else None,
    }


def shape_text(shape: dict[str, Any]) -> str:
    """Say the shape of a line in one sentence."""
    drop = interval_text(shape["barrier"], shape["barrier_interval_95"])
    bends = {1: "flat, then sharp", -1: "most of the change comes first", 0: "no bend is certain"}
    return (
        f"{'a barrier' if shape['is_barrier'] else 'no barrier'}, drop {drop} (largest at "
        f"{shape['at']:g}); half way {interval_text(shape['half'], shape['half_interval_95'])} "
        f"below the straight line: {bends[shape['half_sign']]}"
    )


def _plane(scorer: WeightsScorer, models: Sequence[Weights]) -> Result:
    names = [one.label for one in models]
    scored = {at: scorer.scores_at(_mixed([n / 3 for n in at], models)) for at in THIRDS}
    corners = [scored[3, 0, 0], scored[0, 3, 0], scored[0, 0, 3]]
    center, best = scored[1, 1, 1], max(corners, key=lambda one: scorer.sign * one.mean)
    others = {"mean": np.mean([one.values for one in corners], axis=0), "best": best.values}
    notes = [
        f"the average of the weights scores {interval_text(*mean_and_interval(difference))} beside "
        f"the {name} of the three"
        for name, other in others.items()
        for difference in [center.values - other]
    ]
    lines = [
        (f"{c}/3 {names[2]}", list(range(4 - c)), [scored[3 - b - c, b, c] for b in range(4 - c)])
        for c in range(4)
    ]
    points = [{"thirds": at, **one.as_json()} for at, one in scored.items()]
    rows = [(*map(str, at), *one.cells) for at, one in scored.items()]
    charts = _charts(f"thirds of {names[1]}", lines)
    title = f"Scores between {', '.join(names)}"
    return Result(title, (*names, *CELLS), rows, charts, {"points": points}, notes)


def _mixed(coefficients: Sequence[float], models: Sequence[Weights]) -> Point:
    return Point(tuple((c, one) for c, one in zip(coefficients, models, strict=True) if c))


def _charts(
    x_label: str, lines: Sequence[tuple[str, Sequence[float], Sequence[PointScore]]]
) -> list[Chart]:
    scores = [score_series(*line, color) for color, line in enumerate(lines)]
    kl = [
        Series(label, x, [one.kl for one in points], color=color)
        for color, (label, x, points) in enumerate(lines)
    ]
    return [Chart("score", "", x_label, scores), Chart("KL per token", "", x_label, kl)]
