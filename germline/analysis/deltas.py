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
from itertools import combinations
from typing import Any

import numpy as np
from torch import Tensor

from germline.analysis.groups import (
    layer_series,
    names_by_module,
    pairs_by_method,
    sources_by_method,
)
from germline.analysis.request import Request, Result
from germline.analysis.spectrum import (
    SUBSPACE,
    eigenvalues_and_vectors,
    largest_angle,
    power_law_exponent,
    stable_rank,
)
from germline.analysis.weights import Weights, row_ranges
from germline.config.base import Section
from germline.record.atomic_files import Row
from germline.report.charts import Chart
from germline.report.text_format import number
from germline.signal_metrics import walked

MOST = 1 << 26
"""Numbers of the largest matrix that has a spectrum: 256 MB in fp32."""

MEANS = ("stable_rank", "start_alpha", "alpha", "angle")
"""Values of a tensor that are averaged over the tensors of a kind."""

COLUMNS = {
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
    opened = request.opened
    kept = request.kept_rows(settings)
    names = request.names
    tensors: dict[str, Row] = {}
    for name in names:
        request.watch(f"deltas: {name}")
        tensors[name] = kept.row(name, partial(_measure, opened, name, settings))
    for place, one in enumerate(opened):
        walk = _walk(one)
        for name, row in tensors.items():
            row["sources"][place]["walk"] = _line(one, name, walk)
    overlaps = _overlaps(opened, tensors)
    totals = {
        (one.label, kind): _total([tensors[name]["sources"][place] for name in some])
        for place, one in enumerate(opened)
        for kind, some in {**names_by_module(names), "all": names}.items()
    }
    return Result(
        "Change of the weights",
        ["source", "module", *COLUMNS.values()],
        [[*key, *map(number, map(t.get, COLUMNS))] for key, t in totals.items() if t["norm"]],
        _charts(opened, tensors),
        {
            "modules": [{"source": one, "module": kind, **t} for (one, kind), t in totals.items()],
            "tensors": {name: row["sources"] for name, row in tensors.items()},
            "overlaps": overlaps,
        },
        [_note(one) for one in overlaps],
    )


def _measure(opened: Sequence[Weights], name: str, settings: Settings) -> Mapping[str, Any]:
    sums = np.zeros((len(opened), 4))
    both = dict.fromkeys(combinations(range(len(opened)), 2), 0)
    for first, end in row_ranges(opened[0].shape(name)):
        seen: list[Tensor] = []
        for place, one in enumerate(opened):
            assert one.start is not None
            start, value = one.start.rows(name, first, end), one.rows(name, first, end)
            seen.append(value.bfloat16() != start.bfloat16())
            change = value - start
            squares = [change.square().sum(), start.square().sum()]
            sums[place] += [*map(float, squares), int(change.count_nonzero()), int(seen[-1].sum())]
        for a, b in both:
            both[a, b] += int((seen[a] & seen[b]).sum())
    size = math.prod(opened[0].shape(name))
    sources = [
        {
            "size": size,
            "norm": math.sqrt(change),
            "start_norm": math.sqrt(start),
            "changed": changed / size,
            "visible": visible / size,
            **(_spectrum(one, name, settings.spectrum_width) if change else {}),
        }
        for one, (change, start, changed, visible) in zip(opened, sums.tolist(), strict=True)
    ]
    return {"sources": sources, "both": list(both.values())}


def _spectrum(one: Weights, name: str, widest: int) -> Mapping[str, float]:
    shape = one.shape(name)
    if len(shape) != 2 or min(shape) < 2 or math.prod(shape) > MOST:
        return {}
    assert one.start is not None
    start, end = one.start.read(name), one.read(name)
    found = {"stable_rank": stable_rank(end - start)}
    if not SUBSPACE < min(shape) <= widest:
        return found
    before, vectors = eigenvalues_and_vectors(start)
    after, others = eigenvalues_and_vectors(end)
    exponents = {"start_alpha": power_law_exponent(before), "alpha": power_law_exponent(after)}
    return {**found, **exponents, "angle": largest_angle(vectors, others)}


def _walk(one: Weights) -> float | None:
    """Return the root mean square of a weight's random walk in units; None of other methods."""
    if one.directory is None or one.directory.config.space.kind not in ("full", "low_rank"):
        return None
    entries = one.directory.journal.read(one.generation + 1)
    steps = walked([entry.update for entry in entries], one.directory.config.optimizer)
    return steps[-1] if steps else None


def _line(one: Weights, name: str, walk: float | None) -> float | None:
    """Return the norm (2) that the random walk of a tensor has; 0 of one that is not searched."""
    size = math.prod(one.shape(name))
    return None if walk is None else one.units.get(name, 0.0) * walk * math.sqrt(size)


def _total(tensors: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Sum norms as squares, average shares by size, and average the spectra of tensors."""
    sizes = [one["size"] for one in tensors]
    norm, start = (math.hypot(*(one[key] for one in tensors)) for key in ("norm", "start_norm"))
    lines = [one["walk"] for one in tensors]
    total: dict[str, float | None] = {
        "norm": norm,
        "walk": None if None in lines else math.hypot(*lines),
        "relative": norm / start if start else None,
        **{
            k: float(np.average([t[k] for t in tensors], weights=sizes))
            for k in ("changed", "visible")
        },
    }
    for key in MEANS:
        known = [one[key] for one in tensors if one.get(key) is not None]
        total[key] = float(np.mean(known)) if known else None
    return total


def _overlaps(opened: Sequence[Weights], tensors: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return equation (5) over all tensors, the mean and range of the pairs of two methods."""
    sizes = np.array([row["sources"][0]["size"] for row in tensors.values()], dtype=float)
    shares = np.array([[one["visible"] for one in row["sources"]] for row in tensors.values()])
    both = dict(
        zip(
            combinations(range(len(opened)), 2),
            np.sum([row["both"] for row in tensors.values()], axis=0),
            strict=True,
        )
    )
    found = []
    for methods, pairs in pairs_by_method([one.label for one in opened]).items():
        ratios, chances = [], []
        for a, b in pairs:
            either = sizes @ (shares[:, a] + shares[:, b])
            expected = sizes @ (shares[:, a] * shares[:, b])
            ratios.append(both[a, b] / max(1.0, either - both[a, b]))
            chances.append(expected / max(1.0, either - expected))
        row = {"methods": methods, "pairs": len(pairs), "overlap": float(np.mean(ratios))}
        low, high = float(min(ratios)), float(max(ratios))
        found.append({**row, "low": low, "high": high, "chance": float(np.mean(chances))})
    return found


def _note(overlap: Mapping[str, Any]) -> str:
    return (
        "overlap of the weights visible in bf16, {methods}: {overlap:.3f} ({low:.3f} to {high:.3f} "
        "over {pairs} pairs; by chance in each tensor {chance:.3f})"
    ).format(**overlap)


def _charts(opened: Sequence[Weights], tensors: Mapping[str, Any]) -> list[Chart]:
    """Chart the norm and the visible share of the layers; a walk is a dashed line."""
    norms, shares = [], []
    names = list(tensors)
    for color, (label, places) in enumerate(sources_by_method([o.label for o in opened]).items()):

        def of_layer(key: str, some: list[str], places: Sequence[int] = places) -> list[float]:
            totals = [
                _total([tensors[name]["sources"][place] for name in some]) for place in places
            ]
            return [total[key] or 0.0 for total in totals]

        norms.append(layer_series(label, color, names, partial(of_layer, "norm")))
        if None not in (tensors[names[0]]["sources"][place]["walk"] for place in places):
            line = layer_series(f"{label}: walk", color, names, partial(of_layer, "walk"))
            norms.append(replace(line, style="dashed", low=(), high=()))
        shares.append(layer_series(label, color, names, partial(of_layer, "visible")))
    return [
        Chart("norm of the change", "", "layer", norms, log_y=any(any(one.y) for one in norms)),
        Chart("share visible in bf16", "", "layer", shares),
    ]
