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
    tensors = {
        one.label: {
            name: request.row(f"{one.label} {name}", _measure, one, name, settings.spectrum_width)
            for name in names
        }
        for one in opened
    }
    for one in opened:
        walk = _walk(one)
        for name, row in tensors[one.label].items():
            unit = one.units.get(name, 0.0) * math.sqrt(row["size"])
            row["random_walk"] = None if walk is None else unit * walk
    rows = [
        {"source": label, "module": kind, **_total([of_source[name] for name in some])}
        for label, of_source in tensors.items()
        for kind, some in {**names_by_module(names), "all": names}.items()
    ]
    return Result(
        "Change of the weights",
        COLUMNS,
        [row for row in rows if row["norm"]],
        _charts(tensors),
        {"tensors": tensors},
        [unchanged(row["source"]) for row in rows if row["module"] == "all" and not row["norm"]],
    )


def _measure(one: Weights, name: str, spectrum_width: int) -> Row:
    assert one.start is not None
    shape, sums = one.shapes[name], torch.zeros(4, dtype=torch.float64)
    for start, value in pieces([one], name):
        visible = (value.bfloat16() != start.bfloat16()).sum()
        change = value.sub_(start)
        squares = [change.square().sum(), start.square_().sum()]
        sums += torch.stack([*squares, change.count_nonzero(), visible])
    size = math.prod(shape)
    change, start, changed, visible = sums.tolist()
    row = {
        "size": size,
        "norm": math.sqrt(change),
        "start_norm": math.sqrt(start),
        "changed": changed / size,
        "visible_in_bf16": visible / size,
    }
    if change and len(shape) == 2 and size <= MOST:
        row |= spectrum(one.start.read(name), one.read(name), spectrum_width)
    return row


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


def _charts(tensors: Mapping[str, Mapping[str, Row]]) -> list[Chart]:
    """Chart the norm and the visible share of the layers; a walk is a dashed line."""
    norms, shares = [], []
    sources = [*tensors.values()]
    for color, (label, places) in enumerate(sources_by_method([*tensors]).items()):

        def of_layer(key: str, some: list[str], places: Sequence[int] = places) -> list[float]:
            totals = (_total([sources[place][name] for name in some]) for place in places)
            return [total[key] or 0.0 for total in totals]

        series = partial(layer_series, color=color, names=[*sources[0]])
        norms.append(series(label, partial(of_layer, "norm")))
        if all(of_layer("random_walk", [*sources[0]])):
            line = series(f"{label}: walk", partial(of_layer, "random_walk"))
            norms.append(replace(line, style="dashed", low=(), high=()))
        shares.append(series(label, partial(of_layer, "visible_in_bf16")))
    return [
        Chart("norm of the change", "", "layer", norms, log_y=any(any(one.y) for one in norms)),
        Chart("share visible in bf16", "", "layer", shares),
    ]
