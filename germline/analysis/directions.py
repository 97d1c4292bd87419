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

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    Numbers,
    Point,
    ScoreSettings,
    Values,
    WeightsScorer,
    certain_sign,
    mean_and_interval,
    open_scorer,
)
from germline.analysis.weights import Weights
from germline.record.atomic_files import Row
from germline.report.charts import Chart, Series
from germline.types import GermlineError

RANDOM = 3
"""Random directions, whose scores are averaged."""

OF_TASK = ("learned", "held out")
"""The directions that the first and the second source have learned."""

MEAN = "mean"
"""The distance in the rows of the means over all distances."""

COLUMNS = ("from", "direction", "distance", "score_at_-t", "score_at_t", "slope", "cost", "gain")


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
    steps = (*(-t for t in reversed(distances)), 0.0, *distances)
    averaged: list[tuple[object, Sequence[float]]] = [(t, [t]) for t in distances]
    averaged.append((MEAN, distances))
    rows: list[Row] = []
    charts = []
    with open_scorer(request, settings) as scorer:
        points = directions_of(scorer, opened)
        for center, weights in {"start": None, "run": opened[0]}.items():
            curves = []
            for color, name in enumerate((*OF_TASK[: len(opened)], "random")):
                at = {}
                for t in steps:
                    scored = [scorer.scores_at(point).values for point in points(name, weights, t)]
                    at[t] = scorer.sign * np.mean(scored, axis=0)
                scores = [scorer.sign * float(np.nanmean(values)) for values in at.values()]
                curves.append(Series(name, steps, scores, color=color))
                for distance, some in averaged:
                    row = {"from": center, "direction": name, "distance": distance}
                    rows.append({**row, **_parts(at, some, scorer.sign)})
            charts.append(Chart(f"score from the {center}", "", "distance", curves))
    label = opened[0].label
    return Result(
        f"Directions of {label}", COLUMNS, rows, charts, notes=[f"{label} {_signal(rows)}"]
    )


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
        place = OF_TASK.index(direction)
        return [Point((*parts, (t * norms[0] / norms[place], opened[place])))]

    return points


def _parts(at: Mapping[float, Values], distances: Sequence[float], sign: float) -> Row:
    """Return equations (1) to (3) with intervals, and the scores at -t and t, of mean values."""
    plus, minus = (np.mean([at[side * t] for t in distances], axis=0) for side in (1, -1))
    return {
        "slope": mean_and_interval((plus - minus) / 2),
        "cost": mean_and_interval((plus + minus) / 2 - at[0.0]),
        "gain": mean_and_interval(plus - at[0.0]),
        "gain_sign": certain_sign(plus - at[0.0]),
        "score_at_-t": sign * float(np.nanmean(minus)),
        "score_at_t": sign * float(np.nanmean(plus)),
    }


def _signal(rows: Sequence[Row]) -> str:
    """Say whether a further step along a direction of the task improves the run."""
    signs = {
        row["direction"]: row["gain_sign"]
        for row in rows
        if row["from"] == "run" and row["distance"] == MEAN and row["direction"] != "random"
    }
    gains = [name for name, sign in signs.items() if sign > 0]
    if gains:
        return f"still has signal: a further step in the {gains[0]} direction improves it"
    if all(sign < 0 for sign in signs.values()):
        return "has no signal left: a further step costs more than its slope brings"
    return "may have signal left: no gain or loss is certain"
