"""How training changed each tensor: size, density, and spectrum.

With the change D of a tensor of d numbers, its start W, and the step of a weight that is a random
walk of T updates of N directions (equation 10 of `signal_metrics`, about a sqrt(T / N) at rate a),

    (1)  norm = |D|,   relative = |D| / |W|
    (2)  random walk = unit * walk * sqrt(d)       a sqrt(d T / N), from the journal's coefficients
    (3)  changed = share of weights with D != 0
    (4)  visible = share of weights with bf16(W + D) != bf16(W)

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
    sources_by_method,
    unchanged,
)
from germline.analysis.request import Request, Result
from germline.analysis.spectrum import MOST, spectrum
from germline.analysis.weights import Weights, pieces
from germline.config.base import Section
from germline.record.atomic_files import Row
from germline.report.charts import Chart
from germline.signal_metrics import walked

SPECTRUM = ("stable_rank", "alpha_before", "alpha_after", "angle")
"""Values of a tensor that are averaged over the tensors of a kind."""

TENSOR = ("size", "norm", "start_norm", "random_walk", "changed", "visible_in_bf16", *SPECTRUM)

COLUMNS = ("source", "module", "norm", "random_walk", "relative", *TENSOR[4:])


class Settings(Section):
    """Settings of `germline analyze deltas`."""

    spectrum_width: int = 2048
    """Matrices whose shorter side is longer have no alpha and no angle, which take its cube."""


def measure(request: Request, settings: Settings) -> Result:
    """Measure the change of every tensor of every source."""
    opened, names = request.opened, request.names
    tensors = {n: request.row(n, _measure, opened, n, settings)["sources"] for n in names}
    for place, one in enumerate(opened):
        walk = _walk(one)
        for name, of_sources in tensors.items():
            unit = one.units.get(name, 0.0) * math.sqrt(of_sources[place]["size"])
            of_sources[place]["random_walk"] = None if walk is None else unit * walk
    rows = [
        {"source": one.label, "module": kind, **_total([tensors[name][at] for name in some])}
        for at, one in enumerate(opened)
        for kind, some in {**names_by_module(names), "all": names}.items()
    ]
    return Result(
        "Change of the weights",
        COLUMNS,
        [row for row in rows if row["norm"]],
        _charts([one.label for one in opened], tensors),
        {"tensors": tensors},
        [unchanged(row["source"]) for row in rows if row["module"] == "all" and not row["norm"]],
    )


def _measure(opened: Sequence[Weights], name: str, settings: Settings) -> Row:
    sums = torch.zeros(len(opened), 4, dtype=torch.float64)
    for starts, values in pieces(opened, name):
        visible = (values.bfloat16() != starts.bfloat16()).sum(1)
        changes = values.sub_(starts)
        squares = [changes.square().sum(1), starts.square_().sum(1)]
        sums += torch.stack([*squares, changes.count_nonzero(1), visible], dim=1)
    size = math.prod(opened[0].shapes[name])
    sources = [
        {
            "size": size,
            "norm": math.sqrt(change),
            "start_norm": math.sqrt(start),
            "changed": changed / size,
            "visible_in_bf16": visible / size,
            **(_spectrum(one, name, settings.spectrum_width) if change else {}),
        }
        for one, (change, start, changed, visible) in zip(opened, sums.tolist(), strict=True)
    ]
    return {"sources": sources}


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
    shares = ("changed", "visible_in_bf16")
    return {
        "norm": norm,
        "random_walk": math.hypot(*of["random_walk"]) if of["random_walk"] else None,
        "relative": norm / start if start else None,
        **{key: float(np.average(of[key], weights=of["size"])) for key in shares},
        **{key: float(np.mean(of[key])) if of[key] else None for key in SPECTRUM},
    }


def _charts(labels: Sequence[str], tensors: Mapping[str, Sequence[Row]]) -> list[Chart]:
    """Chart the norm and the visible share of the layers; a walk is a dashed line."""
    norms, shares = [], []
    for color, (label, places) in enumerate(sources_by_method(labels).items()):

        def of_layer(key: str, some: list[str], places: Sequence[int] = places) -> list[float]:
            rows = [[tensors[name][place] for name in some] for place in places]
            return [_total(row)[key] or 0.0 for row in rows]

        series = partial(layer_series, color=color, names=[*tensors])
        norms.append(series(label, partial(of_layer, "norm")))
        if all(of_layer("random_walk", [*tensors])):
            line = series(f"{label}: walk", partial(of_layer, "random_walk"))
            norms.append(replace(line, style="dashed", low=(), high=()))
        shares.append(series(label, partial(of_layer, "visible_in_bf16")))
    return [
        Chart("norm of the change", "", "layer", norms, log_y=any(any(one.y) for one in norms)),
        Chart("share visible in bf16", "", "layer", shares),
    ]
