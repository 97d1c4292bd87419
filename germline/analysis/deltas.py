"""How training changed each tensor: size, density, spectrum, and what seeds have in common.

With the change D of a tensor of d numbers, its start W, and the step of a weight that is a random
walk of T updates of N directions (equation 10 of `signal_metrics`, about a sqrt(T / N) at rate a),

    (1)  norm = |D|,   relative = |D| / |W|
    (2)  random walk = unit * walk * sqrt(d)       a sqrt(d T / N), from the journal's coefficients
    (3)  changed = share of weights with D != 0
    (4)  visible = share of weights with bf16(W + D) != bf16(W)
    (5)  overlap = |A & B| / |A | B| of the weights visible in two runs; chance: p q / (p + q - p q)

A model that is kept in bf16 loses changes below its rounding, so (4) without (3) would show the
sparsity of the format.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from germline.analysis.groups import (
    layer_series,
    names_by_module,
    pairs_by_method,
    sources_by_method,
)
from germline.analysis.request import Request, Result
from germline.analysis.spectrum import MOST, spectrum
from germline.analysis.weights import Weights, pieces
from germline.config.base import Section
from germline.record.atomic_files import Row
from germline.report.charts import Chart
from germline.signal_metrics import walked

SPECTRUM = ("stable_rank", "start_alpha", "alpha", "angle")
"""Values of a tensor that are averaged over the tensors of a kind."""

TENSOR = ("size", "norm", "start_norm", "walk", "changed", "visible", *SPECTRUM)

COLUMNS = {
    "source": "source",
    "module": "module",
    "norm": "norm",
    "walk": "random walk",
    "relative": "relative",
    "changed": "changed",
    "visible": "visible in bf16",
    "stable_rank": "stable rank",
    "start_alpha": "alpha before",
    "alpha": "alpha after",
    "angle": "angle",
}


class Settings(Section):
    """Settings of `germline analyze deltas`."""

    spectrum_width: int = 2048
    """Matrices whose shorter side is longer have no alpha and no angle, which take its cube."""


def measure(request: Request, settings: Settings) -> Result:
    """Measure the change of every tensor of every source."""
    opened, names = request.opened, request.names
    kept = request.kept_rows(settings)
    tensors: dict[str, Row] = {}
    for name in names:
        request.watch(f"deltas: {name}")
        tensors[name] = kept.row(name, partial(_measure, opened, name, settings))
    for place, one in enumerate(opened):
        walk = _walk(one)
        for name, row in tensors.items():
            unit = one.units.get(name, 0.0) * math.sqrt(row["sources"][place]["size"])
            row["sources"][place]["walk"] = None if walk is None else unit * walk
    rows = [
        {"source": one.label, "module": kind, **_total([tensors[n]["sources"][at] for n in some])}
        for at, one in enumerate(opened)
        for kind, some in {**names_by_module(names), "all": names}.items()
    ]
    same = [row["source"] for row in rows if row["module"] == "all" and not row["norm"]]
    overlaps = _overlaps([one.label for one in opened], list(tensors.values()))
    return Result(
        "Change of the weights",
        COLUMNS,
        [row for row in rows if row["norm"]],
        _charts(opened, tensors),
        {"tensors": {n: row["sources"] for n, row in tensors.items()}, "overlaps": overlaps},
        [f"{label} has the weights of its start: nothing changed" for label in same]
        + [
            "overlap of the weights visible in bf16, {methods}: {overlap:.3f} ({low:.3f} to "
            "{high:.3f} over {pairs} pairs; by chance in each tensor {chance:.3f})".format(**one)
            for one in overlaps
        ],
    )


def _measure(opened: Sequence[Weights], name: str, settings: Settings) -> Mapping[str, Any]:
    sums = torch.zeros(len(opened), 3, dtype=torch.float64)
    both = torch.zeros(len(opened), len(opened), dtype=torch.float64)
    for starts, values in pieces(opened, name):
        seen = (values.bfloat16() != starts.bfloat16()).float()
        both += seen @ seen.T  # exact: counts of at most 2^24
        changes = values.sub_(starts)
        squares = [changes.square().sum(1), starts.square_().sum(1)]
        sums += torch.stack([*squares, changes.count_nonzero(1)], dim=1)
    size = math.prod(opened[0].shapes[name])
    sources = [
        {
            "size": size,
            "norm": math.sqrt(change),
            "start_norm": math.sqrt(start),
            "changed": changed / size,
            "visible": visible / size,
            **(_spectrum(one, name, settings.spectrum_width) if change else {}),
        }
        for one, (change, start, changed), visible in zip(
            opened, sums.tolist(), both.diagonal().tolist(), strict=True
        )
    ]
    return {"sources": sources, "both": both.tolist()}


def _spectrum(one: Weights, name: str, widest: int) -> Mapping[str, float]:
    assert one.start is not None
    shape = one.shapes[name]
    if len(shape) != 2 or math.prod(shape) > MOST:
        return {}
    return spectrum(one.start.read(name), one.read(name), widest)


def _walk(one: Weights) -> float | None:
    """Return the root mean square of a weight's random walk in units; None of other methods."""
    if one.directory is None or one.directory.config.space.kind not in ("full", "low_rank"):
        return None
    entries = one.directory.journal.read(one.generation + 1)
    steps = walked([entry.update for entry in entries], one.directory.config.optimizer)
    return steps[-1] if steps else None


def _total(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum norms as squares, average shares by size, and average the spectra of tensors."""
    of = {key: [t[key] for t in tensors if t.get(key) is not None] for key in TENSOR}
    norm, start = math.hypot(*of["norm"]), math.hypot(*of["start_norm"])
    return {
        "norm": norm,
        "walk": math.hypot(*of["walk"]) if of["walk"] else None,
        "relative": norm / start if start else None,
        **{k: float(np.average(of[k], weights=of["size"])) for k in ("changed", "visible")},
        **{key: float(np.mean(of[key])) if of[key] else None for key in SPECTRUM},
    }


def _overlaps(labels: Sequence[str], tensors: Sequence[Row]) -> list[dict[str, Any]]:
    """Return equation (5) over all tensors, the mean and range of the pairs of two methods."""
    both = np.array([row["both"] for row in tensors])
    each = np.diagonal(both, axis1=1, axis2=2)
    sizes = np.array([row["sources"][0]["size"] for row in tensors], dtype=float)
    expected = np.einsum("ta,tb,t->ab", each, each, 1 / sizes)
    visible = each.sum(axis=0)
    either = visible[:, None] + visible

    def share(shared: np.ndarray) -> np.ndarray:
        return shared / np.maximum(1.0, either - shared)

    ratios, chances = share(both.sum(axis=0)), share(expected)
    found = []
    for methods, pairs in pairs_by_method(labels).items():
        at = tuple(zip(*pairs, strict=True))
        row = {"methods": methods, "pairs": len(pairs), "overlap": float(ratios[at].mean())}
        row |= {"low": float(ratios[at].min()), "high": float(ratios[at].max())}
        found.append({**row, "chance": float(chances[at].mean())})
    return found


def _charts(opened: Sequence[Weights], tensors: Mapping[str, Any]) -> list[Chart]:
    """Chart the norm and the visible share of the layers; a walk is a dashed line."""
    norms, shares = [], []
    for color, (label, places) in enumerate(sources_by_method([o.label for o in opened]).items()):

        def of_layer(key: str, some: list[str], places: Sequence[int] = places) -> list[float]:
            rows = [[tensors[name]["sources"][place] for name in some] for place in places]
            return [_total(row)[key] or 0.0 for row in rows]

        series = partial(layer_series, color=color, names=[*tensors])
        norms.append(series(label, partial(of_layer, "norm")))
        if all(of_layer("walk", [*tensors])):
            line = series(f"{label}: walk", partial(of_layer, "walk"))
            norms.append(replace(line, style="dashed", low=(), high=()))
        shares.append(series(label, partial(of_layer, "visible")))
    return [
        Chart("norm of the change", "", "layer", norms, log_y=any(any(one.y) for one in norms)),
        Chart("share visible in bf16", "", "layer", shares),
    ]
