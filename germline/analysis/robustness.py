"""Score and KL after Gaussian noise on all weights, on the head, and on groups of layers.

Noise is the same for all models. Its scale is a multiple of the RMS of each tensor at the start, or
absolute; the table has the RMS over all numbers of the noise as well. (Published figures are
absolute: a 1.5B model tolerates 2e-3, not 8e-3.) Intervals are over trials (Student's t, from five
on). The notes suppose that a higher metric is better.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from germline.analysis.request import Request, Result
from germline.analysis.scorer import (
    Noise,
    Numbers,
    Point,
    ScoreSettings,
    WeightsScorer,
    open_scorer,
)
from germline.evaluation.seed_statistics import seed_statistics
from germline.report.charts import Chart, Series
from germline.report.text_format import number, over_seeds

ALL, HEAD = "all weights", "head"
DEFAULT_SCALES = {"rms": (0.01, 0.03, 0.1, 0.3, 1.0), "one": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)}
LAYER_GROUPS = 3
TOLERATED, FAILED = 0.9, 0.5
"""Shares of the score without noise."""

COLUMNS = ("model", "noise on", "scale", "RMS", "score", "share kept", "KL per token", "behavior")


class Settings(ScoreSettings):
    """Settings of `germline analyze robustness`."""

    unit: Literal["rms", "one"] = "rms"
    """Of the scales: the RMS of each tensor at the start, or 1 (absolute noise)."""
    scales: Numbers = ()
    """Standard deviations of the noise; default: five, by unit."""
    trials: Annotated[int, Field(ge=1)] = 5
    """Draws of noise for each scale."""
    groups: Literal["all", "each"] = "each"
    """`all`: noise on all weights only; `each`: also on the head, and on thirds of the layers."""


def measure(request: Request, settings: Settings) -> Result:
    """Score models with noise on their weights."""
    scales = sorted(settings.scales or DEFAULT_SCALES[settings.unit])
    rows: list[dict[str, Any]] = []
    with open_scorer(request, settings) as scorer:
        groups = tensor_groups(scorer)
        if settings.groups == "all":
            groups = {ALL: groups[ALL]}
        for weights in request.opened:
            clean = scorer.scores_at(Point(((1.0, weights),))).mean
            for group, names in groups.items():
                unit = _unit(scorer, Noise(names, 1.0, relative=settings.unit == "rms"))
                for scale in scales:
                    points = [
                        scorer.scores_at(
                            Point(
                                ((1.0, weights),),
                                Noise(names, scale, trial, settings.unit == "rms"),
                            )
                        )
                        for trial in range(settings.trials)
                    ]
                    facts = {"model": weights.label, "group": group, "scale": scale}
                    measured = {
                        "rms": scale * unit,
                        "without_noise": clean,
                        "scores": [one.mean for one in points],
                        "kl_per_token": float(np.mean([one.kl for one in points])),
                        "behavior": [one.facts["behavior"] for one in points],
                    }
                    rows.append(facts | measured)
    on_all = [row for row in rows if row["group"] == ALL]
    labels = [one.label for one in request.opened]
    x_label = "noise, in RMS of each tensor" if settings.unit == "rms" else "noise"
    charts = [_chart(f"score, noise on {ALL}", x_label, on_all, "model")]
    if len(groups) > 1:
        of_first = [row for row in rows if row["model"] == labels[0]]
        charts.append(_chart(f"score of {labels[0]}", x_label, of_first, "group"))
    notes = [_tolerance([row for row in on_all if row["model"] == label]) for label in labels]
    cells = [_cells(row) for row in rows]
    return Result("Robustness to noise", COLUMNS, cells, charts, {"points": rows}, notes)


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


def _unit(scorer: WeightsScorer, noise: Noise) -> float:
    """Return the root mean square over all numbers of noise of scale 1."""
    squares = count = 0.0
    for name in noise.names:
        start = scorer.start.read(name)
        squares += start.numel() * noise.unit(name, start) ** 2
        count += start.numel()
    return math.sqrt(squares / count)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    statistics = seed_statistics(row["scores"])
    words = dict.fromkeys(row["behavior"])
    return (
        *(row["model"], row["group"], number(row["scale"]), number(row["rms"])),
        over_seeds(statistics),
        number(statistics.mean / row["without_noise"]) if row["without_noise"] else "-",
        number(row["kl_per_token"]),
        ", ".join(f"{row['behavior'].count(word)} {word}" for word in words),
    )


def _tolerance(rows: Sequence[Mapping[str, Any]]) -> str:
    kept = {row["scale"]: float(np.mean(row["scores"])) for row in rows}
    clean = rows[0]["without_noise"]
    tolerated = [number(scale) for scale, score in kept.items() if score >= TOLERATED * clean]
    failed = [number(scale) for scale, score in kept.items() if score < FAILED * clean]
    return (
        f"{rows[0]['model']} ({number(clean)}): largest noise with 90 % of the score "
        f"{tolerated[-1] if tolerated else 'none tried'}, smallest with less than half "
        f"{failed[0] if failed else 'none tried'}"
    )


def _chart(title: str, x_label: str, rows: Sequence[Mapping[str, Any]], by: str) -> Chart:
    lines = []
    for color, label in enumerate(dict.fromkeys(row[by] for row in rows)):
        some = [row for row in rows if row[by] == label]
        means = [float(np.mean(row["scores"])) for row in some]
        low, high = ([end(row["scores"]) for row in some] for end in (min, max))
        lines.append(Series(label, [row["scale"] for row in some], means, low, high, color))
    return Chart(title, "", x_label, lines, log_x=True)
