"""Score and KL after Gaussian noise on all weights, on the head, and on groups of layers.

Noise is the same for all models. Its scale is a multiple of the RMS of each tensor at the start;
the table has the RMS over all numbers of the noise as well. (Published figures are absolute: a 1.5B
model tolerates 2e-3, not 8e-3.) Intervals are over trials (Student's t, from five on).
"""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from germline.analysis.groups import lines
from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    Numbers,
    Point,
    ScoreSettings,
    WeightsScorer,
    open_scorer,
)
from germline.evaluation.seed_statistics import seed_statistics
from germline.record.atomic_files import Row
from germline.report.charts import Chart
from germline.report.text_format import over_seeds

ALL, HEAD = "all weights", "head"
LAYER_GROUPS = 3

COLUMNS = {
    "model": "model",
    "group": "noise on",
    "scale": "scale",
    "rms": "RMS",
    "score": "score",
    "kept": "share kept",
    "kl_per_token": "KL per token",
    "behavior": "behavior",
}


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
    rows: list[Row] = []
    with open_scorer(request, settings) as scorer:
        groups, units = tensor_groups(scorer), scorer.deviations()
        if settings.groups == "all":
            groups = {ALL: groups[ALL]}
        for weights in request.opened:
            center = ((1.0, weights),)
            clean = scorer.scores_at(Point(center)).score[0]
            for group, names in groups.items():
                numbers = sum(scorer.engine.serving[name].numel() for name in names)
                for scale in sorted(settings.scales):
                    noise = {name: scale * units[name] for name in names}
                    points = [
                        scorer.scores_at(Point(center, noise, trial))
                        for trial in range(settings.trials)
                    ]
                    scores = [one.score[0] for one in points]
                    words = [one.facts["behavior"] for one in points]
                    kl = [one.facts["kl_per_token"] for one in points]
                    row = {"model": weights.label, "group": group, "scale": scale}
                    row |= {
                        "rms": scorer.norm(noise) / math.sqrt(numbers),
                        "score": over_seeds(seed_statistics(scores)),
                        "scores": scores,
                        "range": (float(np.mean(scores)), (min(scores), max(scores))),
                        "without_noise": clean,
                        "kept": float(np.mean(scores)) / clean if clean else None,
                        "kl_per_token": None if None in kl else float(np.mean(kl)),
                        "behavior": ", ".join(
                            f"{words.count(word)} {word}" for word in dict.fromkeys(words)
                        ),
                    }
                    rows.append(row)
    first = request.opened[0].label
    parts = {f"score, noise on {ALL}": ("group", ALL, "model")}
    if settings.groups == "each":
        parts[f"score of {first}"] = ("model", first, "group")
    charts = [
        Chart(
            title,
            "",
            "noise, in RMS of each tensor",
            lines([row for row in rows if row[key] == value], by, "scale", "range"),
            log_x=True,
        )
        for title, (key, value, by) in parts.items()
    ]
    return Result("Robustness to noise", COLUMNS, rows, charts)


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
