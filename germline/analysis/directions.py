"""Score along directions, split into slope and cost: does a run still have signal?

At a distance t from a center, in norms of the learned delta, with s(0) the score of the center,

    (1)  slope = (s(t) - s(-t)) / 2             the odd part: what the direction knows of the task
    (2)  cost  = (s(t) + s(-t)) / 2 - s(0)      the even part: what any step of this length costs
    (3)  gain  = slope + cost = s(t) - s(0)     positive where the slope pays for the cost

along the `learned` delta of the first source; `held out`: that of the second source, such as a run
with another seed or other examples, whose slope is of the task and not of the first run's examples
or noise; and `random`: Gaussian, with the learned delta's norm in every tensor. Centers are the
start and the run. Intervals are paired over examples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    Noise,
    Numbers,
    Point,
    ScoreSettings,
    Values,
    WeightsScorer,
    certain_sign,
    interval_text,
    mean_and_interval,
    open_scorer,
)
from germline.analysis.weights import Weights
from germline.report.charts import Chart, Series
from germline.report.text_format import number
from germline.types import GermlineError

RANDOM = 3
"""Random directions, whose scores are averaged."""

PARTS = ("slope", "cost", "gain")
COLUMNS = ("from", "direction", "distance", "score at -t", "score at t", *PARTS)


class Settings(ScoreSettings):
    """Settings of `germline analyze directions`."""

    distances: Numbers = (0.125, 0.25, 0.5)
    """In norms of the learned delta."""


def measure(request: Request, settings: Settings) -> Result:
    """Score along the learned, the held-out and random directions, from the start and the run."""
    opened, distances = request.opened, sorted(settings.distances)
    if len(opened) > 2:
        raise GermlineError(
            f"directions takes a run, and a second one for the held-out direction, found "
            f"{len(opened)} sources: name fewer"
        )
    names = ("learned", "held out")[: len(opened)]
    points, charts, means = [], [], []
    with open_scorer(request, settings) as scorer:
        norms = [_norm(one, scorer) for one in opened]
        for center, base in {"start": 0.0, "run": 1.0}.items():
            lines = []
            for color, name in enumerate((*names, "random")):
                at = {
                    t: _values(scorer, _moved(name, base, t, opened, norms))
                    for t in (*distances, 0.0, *(-t for t in distances))
                }
                facts = {"from": center, "direction": name}
                points += [facts | {"distance": t} | _parts(at, [t]) for t in distances]
                means.append(facts | _parts(at, distances))
                y = [scorer.sign * float(np.nanmean(at[t])) for t in sorted(at)]
                lines.append(Series(name, sorted(at), y, color=color))
            charts.append(Chart(f"score from the {center}", "", "distance", lines))
    rows = [
        [one["from"], one["direction"], number(one["distance"])]
        + [number(scorer.sign * end) for end in one["ends"]]
        + [interval_text(*one[part]) for part in PARTS]
        for one in points
    ]
    note = _signal(opened[0].label, [one for one in means if one["from"] == "run"])
    values = {"points": points, "over_distances": means}
    return Result(f"Directions of {opened[0].label}", COLUMNS, rows, charts, values, [note])


def _moved(
    name: str, base: float, step: float, opened: Sequence[Weights], norms: Sequence[float]
) -> list[Point]:
    """Return the points at a distance from start (base 0) or run (base 1), whose mean counts."""
    run = opened[0]
    center = ((base, run),) if base else ()
    if not step:
        return [Point(center)]
    if name == "random":
        noise = [Noise(frozenset(run.names), step, trial, like=run) for trial in range(RANDOM)]
        return [Point(center, one) for one in noise]
    if name == "learned":
        return [Point(((base + step, run),))]
    return [Point((*center, (step * norms[0] / norms[1], opened[1])))]


def _values(scorer: WeightsScorer, points: Sequence[Point]) -> Values:
    scores = [scorer.scores_at(point).values for point in points]
    return scorer.sign * np.mean(scores, axis=0)


def _norm(weights: Weights, scorer: WeightsScorer) -> float:
    names = scorer.engine.serving
    deltas = (weights.read(name) - scorer.start.read(name) for name in names)
    squares = math.fsum(float(one.double().square().sum()) for one in deltas)
    if squares:
        return math.sqrt(squares)
    raise GermlineError(
        f"directions: {weights.label} has the weights of its start, so it has no delta: name a run "
        "with at least one update"
    )


def _parts(at: Mapping[float, Values], distances: Sequence[float]) -> dict[str, Any]:
    """Return equations (1) to (3) with intervals, and the scores at -t and t, of mean values."""
    plus, minus = (np.mean([at[sign * t] for t in distances], axis=0) for sign in (1, -1))
    return {
        "slope": mean_and_interval((plus - minus) / 2),
        "cost": mean_and_interval((plus + minus) / 2 - at[0.0]),
        "gain": mean_and_interval(plus - at[0.0]),
        "gain_sign": certain_sign(plus - at[0.0]),
        "ends": [float(np.nanmean(one)) for one in (minus, plus)],
    }


def _signal(label: str, at_run: Sequence[Mapping[str, Any]]) -> str:
    """Say whether a further step along a direction of the task improves the run."""
    signs = {one["direction"]: one["gain_sign"] for one in at_run if one["direction"] != "random"}
    gains = [name for name, sign in signs.items() if sign > 0]
    said = "may have signal left: no gain or loss is certain"
    if gains:
        said = f"still has signal: a further step in the {gains[0]} direction improves it"
    elif all(sign < 0 for sign in signs.values()):
        said = "has no signal left: a further step costs more than its slope brings"
    parts = [
        f"{one['direction']} {part} {interval_text(*one[part])}" for one in at_run for part in PARTS
    ]
    return f"{label} {said} (means over the distances: {', '.join(parts)})"
