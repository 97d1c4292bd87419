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
from functools import partial

import numpy as np

from germline.analysis.groups import lines
from germline.analysis.request import Request, Result, cell
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
from germline.report.charts import Chart
from germline.types import GermlineError

Parts = tuple[tuple[float, Weights], ...]
Steps = Callable[[Parts, float], list[Point]]

RANDOM = 3
"""Random directions, whose scores are averaged."""

PARTS = ("slope", "cost", "gain")
COLUMNS = {
    "from": "from",
    "direction": "direction",
    "distance": "distance",
    "minus": "score at -t",
    "plus": "score at t",
    **{part: part for part in PARTS},
}


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
    rows: list[Row] = []
    means: list[Row] = []
    charts = []
    with open_scorer(request, settings) as scorer:
        sign, directions = scorer.sign, _directions(scorer, opened)
        for center, base in {"start": (), "run": ((1.0, opened[0]),)}.items():
            curve: list[Row] = []
            for name, steps in directions.items():
                facts, at = {"from": center, "direction": name}, {}
                for t in (*(-t for t in reversed(distances)), 0.0, *distances):
                    scores = [scorer.scores_at(point).values for point in steps(base, t)]
                    at[t] = sign * np.mean(scores, axis=0)
                    curve.append({**facts, "at": t, "score": sign * float(np.nanmean(at[t]))})
                rows += [{**facts, "distance": t, **_parts(at, [t], sign)} for t in distances]
                means.append({**facts, **_parts(at, distances, sign)})
            drawn = lines(curve, "direction", "at", "score")
            charts.append(Chart(f"score from the {center}", "", "distance", drawn))
    note = _signal(opened[0].label, [one for one in means if one["from"] == "run"])
    title = f"Directions of {opened[0].label}"
    return Result(title, COLUMNS, rows, charts, {"over_distances": means}, [note])


def _directions(scorer: WeightsScorer, opened: Sequence[Weights]) -> dict[str, Steps]:
    """Return by name what gives the points at a distance from a center, whose mean counts."""
    sizes = [scorer.deviations(one) for one in opened]
    norms = [scorer.norm(one) for one in sizes]
    for one, norm in zip(opened, norms, strict=True):
        if not norm:
            raise GermlineError(
                f"directions: {one.label} has the weights of its start, so it has no delta: name a "
                "run with at least one update"
            )

    def along(place: int, base: Parts, t: float) -> list[Point]:
        share = t * norms[0] / norms[place]
        return [Point((*base, (share, opened[place])) if t else base)]

    def random(base: Parts, t: float) -> list[Point]:
        drawn = {name: t * size for name, size in sizes[0].items()}
        return [Point(base, drawn, trial) for trial in range(RANDOM)] if t else [Point(base)]

    named = zip(("learned", "held out"), range(len(opened)), strict=False)
    return {**{name: partial(along, place) for name, place in named}, "random": random}


def _parts(at: Mapping[float, Values], distances: Sequence[float], sign: float) -> Row:
    """Return equations (1) to (3) with intervals, and the scores at -t and t, of mean values."""
    plus, minus = (np.mean([at[side * t] for t in distances], axis=0) for side in (1, -1))
    return {
        "slope": mean_and_interval((plus - minus) / 2),
        "cost": mean_and_interval((plus + minus) / 2 - at[0.0]),
        "gain": mean_and_interval(plus - at[0.0]),
        "gain_sign": certain_sign(plus - at[0.0]),
        "minus": sign * float(np.nanmean(minus)),
        "plus": sign * float(np.nanmean(plus)),
    }


def _signal(label: str, at_run: Sequence[Row]) -> str:
    """Say whether a further step along a direction of the task improves the run."""
    signs = {one["direction"]: one["gain_sign"] for one in at_run if one["direction"] != "random"}
    gains = [name for name, sign in signs.items() if sign > 0]
    said = "may have signal left: no gain or loss is certain"
    if gains:
        said = f"still has signal: a further step in the {gains[0]} direction improves it"
    elif all(sign < 0 for sign in signs.values()):
        said = "has no signal left: a further step costs more than its slope brings"
    parts = [f"{one['direction']} {part} {cell(one[part])}" for one in at_run for part in PARTS]
    return f"{label} {said} (means over the distances: {', '.join(parts)})"
