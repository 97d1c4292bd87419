"""Score and KL after Gaussian noise on all weights, on the head, and on groups of layers.

Noise is the same for all models. Its scale is a multiple of the RMS of each tensor at the start;
the table has the RMS over all numbers of the noise as well. (Published figures are absolute: a 1.5B
model tolerates 2e-3, not 8e-3.) Intervals are over trials (Student's t, from five on).
"""

import math
from dataclasses import replace
from itertools import product
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from germline.analysis.groups import lines
from germline.analysis.request import Request, Result
from germline.analysis.scorer import Numbers, Point, ScoreSettings, WeightsScorer, open_scorer
from germline.evaluation.statistics import seed_statistics
from germline.record.atomic_files import Row
from germline.report.charts import Chart

ALL, HEAD = "all weights", "head"
LAYER_GROUPS = 3

COLUMNS = (
    *("model", "noise_on", "scale", "rms", "score", "share_kept"),
    *("kl_per_token", "behavior"),
)


class Settings(ScoreSettings):
    """Settings of `germline analyze robustness`."""

    scales: Numbers = (0.01, 0.03, 0.1, 0.3, 1.0)
    """Standard deviations of the noise, in RMS of each tensor at the start."""
    trials: Annotated[int, Field(ge=1)] = 5
    """Draws of noise for each scale."""
    groups: Literal["all", "each"] = "each"
    """`all`: noise on all weights only; `each`: also on the head, and on thirds of the layers."""


def measure(request: Request, settings: Settings) -> Result:
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
            words = [one.facts["behavior"] for one in scored]
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
                    "behavior": ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words)),
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
