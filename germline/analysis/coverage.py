"""Which examples k tries solve: by sampling, by noise on the weights, and by trained models.

    start, sampled     n answers of the start at a temperature
    start, noise s     greedy answers of n models: the start with Gaussian noise of s RMS of each
                       tensor, as members of evolution strategies and of RandOpt are
    MODEL, sampled     n answers of a trained model at the temperature

pass@k is the unbiased estimate of `evaluation.statistics` (best@k of a metric that is no share). An
example is solved if one of the n answers is right; of a metric that is no share, if one is better
than the greedy answer of the start. Progressions and regressions compare a model's greedy answers
with those of the start (McNemar's test).
"""

from typing import Annotated

import numpy as np
from jaxtyping import Float64
from pydantic import Field

from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    Numbers,
    Point,
    Positive,
    ScoreSettings,
    mean_and_interval,
    open_scorer,
)
from germline.evaluation.held_out import reductions
from germline.evaluation.statistics import mcnemar
from germline.record.atomic_files import Row
from germline.report.charts import Chart, Series

SAMPLED = "start, sampled"


class Settings(ScoreSettings):
    """Settings of `germline analyze coverage`."""

    samples: Annotated[int, Field(ge=2)] = 16
    """Tries for each example."""
    temperature: Positive = 1.0
    """Of sampled answers."""
    scales: Numbers = (0.03, 0.1, 0.3)
    """Standard deviations of the noise, in RMS of each tensor."""


def measure(request: Request, settings: Settings) -> Result:
    """Count the examples that the start and trained models solve in several tries."""
    tries: dict[str, Float64[np.ndarray, "tries examples"]] = {}
    greedy: dict[str, Row] = {}
    count, temperature = settings.samples, settings.temperature
    with open_scorer(request, settings) as scorer:
        sign, base, units = scorer.sign, scorer.scores_at().values, scorer.deviations()
        tries[SAMPLED] = scorer.scores_at(Point(), count, temperature).samples
        for scale in settings.scales:
            noise = {name: scale * unit for name, unit in units.items()}
            points = [Point((), noise, trial) for trial in range(count)]
            members = [scorer.scores_at(point).values for point in points]
            tries[f"start, noise {scale:g}"] = np.array(members)
        for weights in request.opened:
            point, name = Point(((1.0, weights),)), f"{weights.label}, sampled"
            tries[name] = scorer.scores_at(point, count, temperature).samples
            change = sign * (scorer.scores_at(point).values - base)
            better, worse = int((change > 0).sum()), int((change < 0).sum())
            greedy[name] = {"greedy_better": better, "worse": worse, "p": mcnemar(better, worse)}
    reached = {
        name: {
            key: mean_and_interval(values)
            for key, values in reductions(some, None, higher_is_better=sign > 0).items()
        }
        for name, some in tries.items()
    }
    keys = [*reached[SAMPLED]]
    metric = keys[0].partition("@")[0]
    solved = {
        name: (some == 1 if metric == "pass" else sign * (some - base) > 0).any(axis=0)
        for name, some in tries.items()
    }
    count_of = "solved" if metric == "pass" else "better_than_greedy"
    rows = [
        {
            "tries": name,
            **reached[name],
            count_of: int(one.sum()),
            "not_by_the_start's_samples": int((one & ~solved[SAMPLED]).sum()),
            "only_by_these": int((solved[SAMPLED] & ~one).sum()),
            "overlap": {
                other: int((one & some).sum()) / max(1, int((one | some).sum()))
                for other, some in solved.items()
            },
            **greedy.get(name, {}),
        }
        for name, one in solved.items()
    ]
    curves = []
    for color, (name, at_k) in enumerate(reached.items()):
        means, intervals = zip(*at_k.values(), strict=True)
        low, high = zip(*intervals, strict=True)
        ks = [int(key.partition("@")[2]) for key in at_k]
        curves.append(Series(name, ks, means, low, high, color))
    columns = [key for key in rows[-1] if key != "overlap"]
    chart = Chart(f"{metric}@k", "", "k", curves, log_x=True)
    return Result(f"Coverage of {len(base)} examples", columns, rows, [chart])
