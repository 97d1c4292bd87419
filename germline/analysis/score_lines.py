"""Scores along lines: between models (`modes`), and along directions from a center (`directions`).

**Modes.** The points are

    one model      start + t (model - start), t from 0 to 1.5
    two models     (1 - t) A + t B, t from 0 to 1
    three models   w1 A + w2 B + w3 C in thirds, w1 + w2 + w3 = 1

The drop of a line below the straight line, with the score v_e(t) of example e, is

    (1)  D_e(t) = (1 - t) v_e(0) + t v_e(1) - v_e(t)

and the barrier its largest mean (Frankle et al. 2020, arXiv 1912.05671, with scores for errors). As
the largest of noisy values is above 0 without any barrier, one half of the examples chooses t and
the other half measures (1), and the other way around. At t = 1/2, D > 0 says that the line is flat
first and then sharp, D < 0 that the first half of the way brings most of the change.

**Directions.** Does a run still have signal? At a distance t from a center, in norms of the learned
delta, with s(0) the score of the center,

    (2)  slope = (s(t) - s(-t)) / 2             the odd part: what the direction knows of the task
    (3)  cost  = (s(t) + s(-t)) / 2 - s(0)      the even part: what any step of this length costs
    (4)  gain  = slope + cost = s(t) - s(0)     positive where the slope pays for the cost

along the `learned` delta of the first source; `held out`: that of the second source, such as a run
with another seed or other examples, whose slope is of the task and not of the first run's examples
or noise; and `random`: Gaussian, with the learned delta's norm in every tensor. Centers are the
start and the run. Intervals are paired over examples.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline import noise
from germline.analysis.groups import lines
from germline.analysis.request import Request, Result, cell
from germline.analysis.scorer import (
    COLUMNS,
    Numbers,
    Point,
    ScoreSettings,
    Values,
    WeightsScorer,
    certain_sign,
    mean_and_interval,
    open_scorer,
    score_and_interval,
)
from germline.analysis.weights import Weights
from germline.record.atomic_files import Row
from germline.report.charts import Chart
from germline.types import GermlineError

LINE = tuple(step / 10 for step in range(11))

SHARES: Mapping[int, Sequence[tuple[float, ...]]] = {
    1: [(t,) for t in (*LINE, 1.25, 1.5)],
    2: [(1 - t, t) for t in LINE],
    3: [((3 - b - c) / 3, b / 3, c / 3) for c in range(4) for b in range(4 - c)],
}
"""The shares of one, two or three models in each point."""

RANDOM = 3
"""Random directions, whose scores are averaged."""

LEARNED = ("learned", "held out")
"""The directions that the first and the second source have learned."""

PARTS = ("from", "direction", "distance", "score_at_-t", "score_at_t", "slope", "cost", "gain")


class DirectionSettings(ScoreSettings):
    """Settings of `germline analyze directions`."""

    distances: Numbers = (0.125, 0.25, 0.5)
    """In norms of the learned delta."""


def modes(request: Request, settings: ScoreSettings) -> Result:
    """Score the points between one, two or three models."""
    models, labels = request.opened, request.labels
    if len(models) > 3:
        raise GermlineError(
            f"modes takes 1 model (its delta is scaled), 2 (a line) or 3 (a plane), found "
            f"{len(models)}: name fewer"
        )
    with open_scorer(request, settings) as scorer:
        sign, scored = scorer.sign, {}
        for shares in SHARES[len(models)]:
            parts = zip(shares, models, strict=True)
            scored[shares] = scorer.scores_at(Point(tuple(part for part in parts if part[0])))
    is_line = len(models) < 3
    title = " to ".join(["start", *labels][-2:]) if is_line else ", ".join(labels)
    names = ("share",) if len(models) == 1 else ("first", "second", "third")[: len(models)]
    rows = [
        {
            **dict(zip(names, shares, strict=True)),
            "line": title if is_line else f"{shares[2]:.2g} {labels[2]}",
            "score": score_and_interval(one.values),
            **one.facts,
        }
        for shares, one in scored.items()
    ]
    x, x_label = names[:2][-1], f"share of {labels[:2][-1]}"
    titles = {"score": "score", "kl_per_token": "KL per token"}
    charts = [Chart(name, "", x_label, lines(rows, "line", x, y)) for y, name in titles.items()]
    values, notes = {}, []
    if is_line:
        shape = line_shape(sign * np.array([one.values for one in scored.values()][: len(LINE)]))
        values, notes = {"shape": shape}, [f"{title}: {shape_text(shape)}"]
    title = f"Scores {'from' if is_line else 'between'} {title}"
    return Result(title, (*names, *COLUMNS), rows, charts, values, notes)


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


def directions(request: Request, settings: DirectionSettings) -> Result:
    """Score along the learned, the held-out and random directions, from the start and the run."""
    opened, distances = request.opened, sorted(settings.distances)
    if len(opened) > 2:
        raise GermlineError(
            f"directions takes a run, and a second one for the held-out direction, found "
            f"{len(opened)} sources: name fewer"
        )
    averaged: dict[object, list[float]] = {**{t: [t] for t in distances}, "mean": distances}
    rows: list[Row] = []
    charts = []
    with open_scorer(request, settings) as scorer:
        points = directions_of(scorer, opened)
        for center, weights in {"start": None, "run": opened[0]}.items():
            curve = []
            for name in (*LEARNED[: len(opened)], "random"):
                at = {}
                for t in (*(-t for t in reversed(distances)), 0.0, *distances):
                    scored = [scorer.scores_at(one).values for one in points(name, weights, t)]
                    at[t] = np.mean(scored, axis=0)
                    curve.append({"name": name, "t": t, "score": float(np.nanmean(at[t]))})
                for distance, some in averaged.items():
                    row = {"from": center, "direction": name, "distance": distance}
                    rows.append({**row, **_parts(at, some, scorer.sign)})
            title = f"score from the {center}"
            charts.append(Chart(title, "", "distance", lines(curve, "name", "t", "score")))
    label = request.labels[0]
    note = f"{label} {_signal(rows)}"
    return Result(f"Directions of {label}", PARTS, rows, charts, notes=[note])


def directions_of(
    scorer: WeightsScorer, opened: Sequence[Weights]
) -> Callable[[str, Weights | None, float], list[Point]]:
    """Return what gives the points at a distance along a direction from a center."""
    sizes = [scorer.deviations(one) for one in opened]
    norms = [scorer.norm(one) for one in sizes]
    for one, norm in zip(opened, norms, strict=True):
        if not norm:
            raise GermlineError(
                f"directions: {one.label} has the weights of its start, so it has no delta: name a "
                "run with at least one update"
            )

    def points(direction: str, center: Weights | None, t: float) -> list[Point]:
        parts = ((1.0, center),) if center else ()
        if not t:
            return [Point(parts)]
        if direction == "random":
            noise = {name: t * size for name, size in sizes[0].items()}
            return [Point(parts, noise, trial) for trial in range(RANDOM)]
        place = LEARNED.index(direction)
        return [Point((*parts, (t * norms[0] / norms[place], opened[place])))]

    return points


def _parts(at: Mapping[float, Values], distances: Sequence[float], sign: float) -> Row:
    """Return equations (2) to (4) with intervals, and the scores at -t and t, of mean values."""
    plus, minus = (np.mean([at[side * t] for t in distances], axis=0) for side in (1, -1))
    gain = sign * (plus - at[0.0])
    return {
        "slope": mean_and_interval(sign * (plus - minus) / 2),
        "cost": mean_and_interval(sign * ((plus + minus) / 2 - at[0.0])),
        "gain": mean_and_interval(gain),
        "gain_sign": certain_sign(gain),
        "score_at_-t": float(np.nanmean(minus)),
        "score_at_t": float(np.nanmean(plus)),
    }


def _signal(rows: Sequence[Row]) -> str:
    """Say whether a further step along a direction of the task improves the run."""
    signs = {
        row["direction"]: row["gain_sign"]
        for row in rows
        if row["from"] == "run" and row["distance"] == "mean" and row["direction"] != "random"
    }
    gains = [name for name, sign in signs.items() if sign > 0]
    if gains:
        return f"still has signal: a further step in the {gains[0]} direction improves it"
    if all(sign < 0 for sign in signs.values()):
        return "has no signal left: a further step costs more than its slope brings"
    return "may have signal left: no gain or loss is certain"
