"""Which examples k tries solve: by sampling, by noise on the weights, and by trained models.

    start, sampled     n answers of the start at a temperature
    start, noise s     greedy answers of n models: the start with Gaussian noise of s RMS of each
                       tensor, as members of evolution strategies and of RandOpt are
    MODEL, sampled     n answers of a trained model at the temperature

pass@k is the unbiased estimate of `evaluation.statistics` (best@k of a metric that is no share). An
example is solved if one of the n answers is right. Progressions and regressions compare a model's
greedy answers with those of the start (McNemar's test).
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float64
from pydantic import Field

from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    Noise,
    Numbers,
    Point,
    Positive,
    ScoreSettings,
    Values,
    interval_text,
    mean_and_interval,
    open_scorer,
)
from germline.evaluation.samples import reductions
from germline.evaluation.statistics import mcnemar
from germline.report.charts import Chart, Series
from germline.report.text_format import number

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
    changes: dict[str, dict[str, float]] = {}
    count = settings.samples
    with open_scorer(request, settings) as scorer:
        names, base = frozenset(scorer.start.names), scorer.scores_at().values
        tries[SAMPLED] = scorer.scores_at(Point(), count, settings.temperature).samples
        for scale in settings.scales:
            noise = [Noise(names, scale, trial) for trial in range(count)]
            members = [scorer.scores_at(Point(noise=one)).values for one in noise]
            tries[f"start, noise {scale:g}"] = np.array(members)
        for weights in request.opened:
            point, name = Point(((1.0, weights),)), f"{weights.label}, sampled"
            tries[name] = scorer.scores_at(point, count, settings.temperature).samples
            changes[name] = _changes(scorer.sign * (scorer.scores_at(point).values - base))
        is_better = scorer.sign > 0
    reached = {
        name: {
            k: mean_and_interval(one)
            for k, one in reductions(some, None, higher_is_better=is_better).items()
        }
        for name, some in tries.items()
    }
    solved = {name: (some == 1).any(axis=0) for name, some in tries.items()}
    facts = {
        name: {
            "at_k": reached[name],
            "solved": int(one.sum()),
            "not_by_start": int((one & ~solved[SAMPLED]).sum()),
            "only_by_start": int((solved[SAMPLED] & ~one).sum()),
            "overlap": {other: _overlap(one, some) for other, some in solved.items()},
            "greedy": changes.get(name),
        }
        for name, one in solved.items()
    }
    ks = [k.partition("@")[2] for k in reached[SAMPLED]]
    columns = ("tries", *reached[SAMPLED], "solved", "not by the start's samples", "only by these")
    lines = [
        Series(name, [*map(int, ks)], [mean for mean, _ in one.values()], color=color)
        for color, (name, one) in enumerate(reached.items())
    ]
    return Result(
        f"Coverage of {len(base)} examples",
        (*columns, "greedy better, worse"),
        [_row(name, one) for name, one in facts.items()],
        [Chart(f"{next(iter(reached[SAMPLED])).partition('@')[0]}@k", "", "k", lines, log_x=True)],
        {"examples": len(base), "tries": facts},
        [
            f"greedy answers of {name.removesuffix(', sampled')}: {one['higher']} progressions and "
            f"{one['lower']} regressions (p = {number(one['p'])})"
            for name, one in changes.items()
        ],
    )


def _changes(differences: Values) -> dict[str, float]:
    higher, lower = int((differences > 0).sum()), int((differences < 0).sum())
    return {"higher": higher, "lower": lower, "p": mcnemar(higher, lower)}


def _overlap(one: Bool[np.ndarray, " examples"], other: Bool[np.ndarray, " examples"]) -> float:
    """Return the examples that both solve as a share of those that either solves."""
    return int((one & other).sum()) / max(1, int((one | other).sum()))


def _row(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    greedy = facts["greedy"]
    return (
        name,
        *(interval_text(*one) for one in facts["at_k"].values()),
        *(str(facts[count]) for count in ("solved", "not_by_start", "only_by_start")),
        f"{greedy['higher']}, {greedy['lower']}" if greedy else "",
    )
