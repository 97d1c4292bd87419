"""Scores of several tries: of weights with noise (`robustness`), and of answers (`coverage`).

**Robustness.** Gaussian noise on all weights, on the head, and on groups of layers is the same for
all models. Its scale is a multiple of the RMS of each tensor at the start; the table has the RMS
over all numbers of the noise as well. (Published figures are absolute: a 1.5B model tolerates 2e-3,
not 8e-3.) Intervals are over trials (Student's t, from five on).

**Coverage.** Which examples k tries solve:

    start, sampled     n answers of the start at a temperature
    start, noise s     greedy answers of n models: the start with Gaussian noise of s RMS of each
                       tensor, as members of evolution strategies and of RandOpt are
    MODEL, sampled     n answers of a trained model at the temperature

pass@k is the unbiased estimate of `evaluation.statistics` (best@k of a metric that is no share). An
example is solved if one of the n answers is right; of a metric that is no share, if one is better
than the greedy answer of the start. Progressions and regressions compare a model's greedy answers
with those of the start (McNemar's test).
"""

import math
from dataclasses import replace
from itertools import product
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float64
from pydantic import Field

from germline.analysis.groups import lines
from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    Numbers,
    Point,
    Positive,
    ScoreSettings,
    WeightsScorer,
    open_scorer,
    score_and_interval,
)
from germline.evaluation.held_out import reductions
from germline.evaluation.statistics import mcnemar, seed_statistics
from germline.record.atomic_files import Row
from germline.report.charts import Chart

ALL, HEAD = "all weights", "head"
LAYER_GROUPS = 3

SAMPLED = "start, sampled"

COLUMNS = ("model", "noise_on", "scale", "rms", "score", "share_kept", "kl_per_token")


class RobustnessSettings(ScoreSettings):
    """Settings of `germline analyze robustness`."""

    scales: Numbers = (0.01, 0.03, 0.1, 0.3, 1.0)
    """Standard deviations of the noise, in RMS of each tensor at the start."""
    trials: Annotated[int, Field(ge=1)] = 5
    """Draws of noise for each scale."""
    groups: Literal["all", "each"] = "each"
    """`all`: noise on all weights only; `each`: also on the head, and on thirds of the layers."""


class CoverageSettings(ScoreSettings):
    """Settings of `germline analyze coverage`."""

    samples: Annotated[int, Field(ge=2)] = 16
    """Tries for each example."""
    temperature: Positive = 1.0
    """Of sampled answers."""
    scales: Numbers = (0.03, 0.1, 0.3)
    """Standard deviations of the noise, in RMS of each tensor."""


def robustness(request: Request, settings: RobustnessSettings) -> Result:
    """Score models with noise on their weights."""
    with open_scorer(request, settings) as scorer:
        units, groups = scorer.deviations(), tensor_groups(scorer)
        if settings.groups == "all":
            groups = {ALL: groups[ALL]}
        rows: list[Row] = []
        cases = product(request.opened, groups.items(), sorted(settings.scales))
        for weights, (group, names), scale in cases:
            center, noise = ((1.0, weights),), {name: scale * units[name] for name in names}
            clean = float(np.nanmean(scorer.scores_at(Point(center)).values))
            numbers = sum(scorer.engine.serving[name].numel() for name in names)
            trials = range(settings.trials)
            scored = [scorer.scores_at(Point(center, noise, trial)) for trial in trials]
            scores = [float(np.nanmean(one.values)) for one in scored]
            kl = [one.facts["kl_per_token"] for one in scored]
            over = seed_statistics(scores)
            row = {"model": weights.label, "noise_on": group, "scale": scale, "scores": scores}
            rows.append(
                row
                | {
                    "rms": scorer.norm(noise) / math.sqrt(numbers),
                    "score": (over.mean, (over.low, over.high)),
                    "without_noise": clean,
                    "share_kept": over.mean / clean if clean else None,
                    "kl_per_token": None if None in kl else float(np.mean(kl)),
                }
            )
    first, x = request.opened[0].label, "noise, in RMS of each tensor"
    on_all = [row for row in rows if row["noise_on"] == ALL]
    of_first = [row for row in rows if row["model"] == first]
    charts = [Chart(f"score, noise on {ALL}", "", x, lines(on_all, "model", "scale", "score"))]
    if settings.groups == "each":
        drawn = lines(of_first, "noise_on", "scale", "score")
        charts.append(Chart(f"score of {first}", "", x, drawn))
    return Result("Robustness to noise", COLUMNS, rows, [replace(c, log_x=True) for c in charts])


def tensor_groups(scorer: WeightsScorer) -> dict[str, frozenset[str]]:
    """Return the tensors of each group; a head may be tied to the embedding."""
    infos, model = scorer.engine.weights.infos, scorer.engine.model
    named = {ALL: frozenset(info.name for info in infos)}
    if (head := model.get_output_embeddings()) is not None:
        tied = (name for name, one in model.named_parameters() if one is head.weight)
        named[HEAD] = frozenset(tied)
    layers = sorted({info.layer for info in infos if info.layer is not None})
    for some in map(np.ndarray.tolist, np.array_split(layers, min(LAYER_GROUPS, len(layers)))):
        of_some = frozenset(info.name for info in infos if info.layer in some)
        named[f"layers {some[0]} to {some[-1]}"] = of_some
    return named


def coverage(request: Request, settings: CoverageSettings) -> Result:
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
        name: reductions(some, None, higher_is_better=sign > 0) for name, some in tries.items()
    }
    metric = next(iter(reached[SAMPLED])).partition("@")[0]
    solved = {
        name: (some == 1 if metric == "pass" else sign * (some - base) > 0).any(axis=0)
        for name, some in tries.items()
    }
    at_k = [
        {"tries": name, "k": int(key.partition("@")[2]), "score": score_and_interval(values)}
        for name, found in reached.items()
        for key, values in found.items()
    ]
    rows = [
        {
            "tries": name,
            **{f"{metric}@{row['k']}": row["score"] for row in at_k if row["tries"] == name},
            "solved" if metric == "pass" else "better_than_greedy": int(one.sum()),
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
    columns = [key for key in rows[-1] if key != "overlap"]
    chart = Chart(f"{metric}@k", "", "k", lines(at_k, "tries", "k", "score"), log_x=True)
    return Result(f"Coverage of {len(base)} examples", columns, rows, [chart])
