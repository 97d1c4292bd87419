"""How training changed the weights (`deltas`), and how much the changes of runs agree (`cosine`).

**Deltas.** With the change D of a tensor of d numbers, its start W, and the step of a weight that
is a random walk of T updates of N directions (equation 8 of `signal_metrics`, about a sqrt(T / N)
at rate a),

    (1)  norm = |D|,   relative = |D| / |W|
    (2)  random walk = unit * walk * sqrt(d)       a sqrt(d T / N), from the journal's coefficients
    (3)  changed = share of weights with D != 0
    (4)  visible = share of weights with bf16(W + D) != bf16(W)
    (5)  stable rank = |D|^2 / s_1^2               Frobenius norm, largest singular value
    (6)  alpha = 1 + n / sum_i ln(l_i / l_min)     of the n eigenvalues l_i >= l_min of M^T M
    (7)  angle between the spans of the first singular vectors of W and W + D, the largest one

A model that is kept in bf16 loses changes below its rounding, so (4) without (3) would show the
sparsity of the format. (6) is the maximum-likelihood exponent of a power law, with the l_min of the
smallest distance of Kolmogorov and Smirnov (Clauset, Shalizi and Newman 2009, SIAM Review 51);
Martin and Mahoney (2021, JMLR 22) and their WeightWatcher call it the alpha of a layer.

**Cosine.** With the changes D and E that two sources made, such as two generations of one run, to p
and q numbers of which d are the same,

    (8)  cosine = D E / (|D| |E|)
    (9)  chance = sqrt(d / (p q))            standard deviation of (8) for random directions
    (10) overlap = |A & B| / |A | B|         of the weights whose change is visible in bf16
    (11) overlap by chance = r s / (r + s - r s)     for shares r and s of each tensor

Changes of few large weights agree by chance more often than (9) says. The interval of a cosine over
many tensors is a bootstrap over the tensors: layers are not independent numbers, and training moves
some of them alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from germline.analysis.request import Request, Result, pairs_by_method, tensor_groups
from germline.analysis.weights import Weights, pieces
from germline.config.base import Section
from germline.evaluation.statistics import Interval
from germline.record.atomic_files import Row
from germline.report.charts import Chart, mean_lines
from germline.signal_metrics import walked
from germline.types import GermlineError

MOST = 1 << 26
"""Numbers of the largest matrix that has a spectrum: 256 MB in fp32."""

SUBSPACE = 8
"""Singular vectors whose span is compared: equation (7)."""

FEWEST = 10
"""Eigenvalues of the shortest tail that a power law is fitted to."""

SPECTRUM = ("stable_rank", "alpha_before", "alpha_after", "angle")
"""Values of a tensor that are averaged over the tensors of a kind."""

SHARES = ("changed", "visible_in_bf16")
"""Values of a tensor that are averaged by its size."""

RESAMPLES = 1000

MOST_CURVES = 6
"""Curves of a chart; of more methods, all pairs of different methods make one curve."""

Sums = Float64[np.ndarray, "tensors sources sources"]
"""Of each tensor and two sources: the product of their changes, or the number of weights whose
change is visible in bf16 in both."""


class DeltaSettings(Section):
    """Settings of `germline analyze deltas`."""

    spectrum_width: int = 2048
    """Matrices whose shorter side is longer have no alpha and no angle, which take its cube."""
    layers: bool = False
    """Whether the table has a row for each layer as well."""


def deltas(request: Request, settings: DeltaSettings) -> Result:
    """Measure the change of every tensor of every source."""
    tensors: dict[str, dict[str, Row]] = {}
    rows: list[Row] = []
    for one, method in zip(request.opened, request.methods, strict=True):
        walk, of = _walk(one), tensors.setdefault(one.label, {})
        for name in request.names:
            key = f"{one.label} {name}"
            of[name] = request.row(key, _measure, one, name, settings.spectrum_width)
            unit = one.units.get(name, 0.0) * math.sqrt(of[name]["size"])
            of[name]["random_walk"] = None if walk is None else unit * walk
        for group, some in tensor_groups(request.names).items():
            about = {"source": one.label, "method": method, "module": group}
            rows.append(about | _total([of[name] for name in some]))
    notes = unchanged(request, [row["norm"] for row in rows if row["module"] == "all"])
    layers = [row for row in rows if isinstance(row["module"], int)]
    norms = mean_lines(layers, "method", "module", "norm")
    walks = mean_lines(layers, "method", "module", "random_walk", "dashed")
    norms += [replace(one, label=f"{one.label}: walk") for one in walks]
    is_any = any(row["norm"] for row in layers)
    visible = mean_lines(layers, "method", "module", "visible_in_bf16")
    charts = [
        Chart("norm of the change", "", "layer", norms, log_y=is_any),
        Chart("share visible in bf16", "", "layer", visible),
    ]
    shown = [row for row in rows if row["norm"] and (settings.layers or row not in layers)]
    values = {"tensors": tensors}
    return Result("Change of the weights", shown, charts, values, notes, hidden=["method"])


def unchanged(request: Request, norms: Sequence[float] | np.ndarray) -> list[str]:
    """Return a note for each source whose change has the norm 0."""
    labels = [label for label, norm in zip(request.labels, norms, strict=True) if not norm]
    return [f"{label} has the weights of its start: nothing changed" for label in labels]


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
    norms = {"size": size, "norm": math.sqrt(change), "start_norm": math.sqrt(start)}
    row = {**norms, "changed": changed / size, "visible_in_bf16": visible / size}
    if change and len(shape) == 2 and min(shape) > 1 and size <= MOST:
        row |= spectrum(one.start.read(name), one.read(name), spectrum_width)
    return row


def _walk(one: Weights) -> float | None:
    """Return the root mean square of a weight's random walk in units; None of other methods."""
    if one.directory is None or one.directory.config.space.kind not in ("full", "low_rank"):
        return None
    entries = one.directory.journal.read(one.generation + 1)
    steps = walked([entry.update for entry in entries], one.directory.config.optimizer)
    return steps[-1] if steps else None


def _total(tensors: Sequence[Mapping[str, Any]]) -> Row:
    """Sum norms as squares, average shares by size, and average the spectra of tensors."""

    def of(key: str) -> list[float]:
        return [one[key] for one in tensors if one.get(key) is not None]

    norm, start = math.hypot(*of("norm")), math.hypot(*of("start_norm"))
    return {
        "norm": norm,
        "random_walk": math.hypot(*of("random_walk")) if of("random_walk") else None,
        "relative": norm / start if start else None,
        **{key: float(np.average(of(key), weights=of("size"))) for key in SHARES},
        **{key: float(np.mean(of(key))) if of(key) else None for key in SPECTRUM},
    }


def spectrum(
    start: Float32[Tensor, "rows columns"], end: Float32[Tensor, "rows columns"], widest: int
) -> Mapping[str, float]:
    """Return the stable rank of a change, the alpha before and after, and the angle in degrees.

    Matrices that are wider than `widest`, or too narrow for the angle, have the first only.
    """
    rank = stable_rank(end - start)
    if not SUBSPACE < min(start.shape) <= widest:
        return {"stable_rank": rank}
    from scipy.linalg import subspace_angles

    before, after = (eigenvalues_and_vectors(matrix) for matrix in (start, end))
    spans = (vectors[:, :SUBSPACE].numpy() for _, vectors in (before, after))
    return {
        "stable_rank": rank,
        "alpha_before": power_law_exponent(before[0]),
        "alpha_after": power_law_exponent(after[0]),
        "angle": float(np.degrees(subspace_angles(*spans).max())),
    }


def eigenvalues_and_vectors(matrix: Float32[Tensor, "rows columns"]) -> tuple[np.ndarray, Tensor]:
    """Return the eigenvalues of M^T M (or M M^T, if smaller), the largest first, with vectors."""
    narrow = (matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T).double()
    values, vectors = torch.linalg.eigh(narrow.T @ narrow)
    return values.flip(0).clamp(min=0).numpy(), vectors.flip(1)


def stable_rank(matrix: Float32[Tensor, "rows columns"]) -> float:
    """Return the stable rank (5) of a matrix of at least two rows and columns, not all zero."""
    from scipy.sparse.linalg import svds

    start = np.random.default_rng(0).standard_normal(min(matrix.shape)).astype(np.float32)
    largest = svds(matrix.numpy(), k=1, v0=start, return_singular_vectors=False).item()
    return float((matrix.norm() / largest) ** 2)


def power_law_exponent(eigenvalues: Float64[np.ndarray, " n"]) -> float:
    """Return alpha (6); NaN of fewer than `FEWEST` positive values."""
    values = np.sort(eigenvalues[eigenvalues > eigenvalues.max(initial=0) * 1e-12])
    best = math.inf, math.nan
    for first in range(len(values) - FEWEST + 1):
        logs = np.log(values[first:] / values[first])
        if not logs.any():
            continue
        alpha = float(1 + len(logs) / logs.sum())
        fitted = 1 - np.exp(logs * (1 - alpha))
        steps = np.arange(len(logs) + 1) / len(logs)
        distance = max(np.abs(fitted - steps[:-1]).max(), np.abs(fitted - steps[1:]).max())
        best = min(best, (distance, alpha))
    return best[1]


def cosine(request: Request, settings: Section) -> Result:
    """Measure the cosines of all pairs of sources."""
    opened, names, labels = request.opened, request.names, request.labels
    if len(opened) < 2:
        raise GermlineError(
            "analyze cosine: compare two sources, or two generations of one: -g 10 -g 20"
        )
    kept = [request.row(name, _measure_all, opened, name) for name in names]
    sums = [np.array([row[key] for row in kept], float) for key in ("size", "products", "visible")]
    rows: list[Row] = []
    layers: list[Row] = []
    by_method = pairs_by_method(request.methods)
    for methods, pairs in by_method.items():
        is_many = len(by_method) > MOST_CURVES and " and " in methods
        curve = {"curve": "different methods" if is_many else methods, "of": "chance"}
        for group, some in tensor_groups(names).items():
            part = [one[np.isin(names, some)] for one in sums]
            values = {key: one[tuple(np.transpose(pairs))] for key, one in agreement(*part).items()}
            known = ~np.isnan(values["cosine"])
            if isinstance(group, int):
                each = zip(values["cosine"], values["chance"], strict=True)
                layers += [{**curve, "layer": group, "cosine": c, "chance": by} for c, by in each]
            elif known.any():
                means: Row = {key: float(value[known].mean()) for key, value in values.items()}
                means["cosine"] = means["cosine"], interval(part[1], np.array(pairs)[known])
                row = {"methods": methods, "module": group, "pairs": int(known.sum())}
                rows.append(row | means)
    whole = agreement(*sums)["cosine"].tolist()
    found = [
        {"pair": [labels[first], labels[second]], "cosine": whole[first][second]}
        for first, second in chain.from_iterable(by_method.values())
    ]
    notes = unchanged(request, np.einsum("tii->i", sums[1]))
    curves = mean_lines(layers, "curve", "layer", "cosine")
    chances = mean_lines(layers, "of", "layer", "chance", "dashed")
    curves += [replace(one, color=MOST_CURVES) for one in chances]
    charts = [Chart("cosine of the changes", "", "layer", curves)]
    return Result("Cosine of the changes", rows, charts, {"pairs": found}, notes)


def _measure_all(opened: Sequence[Weights], name: str) -> Row:
    products = torch.zeros(len(opened), len(opened), dtype=torch.float64)
    visible = torch.zeros_like(products)
    for starts, values in pieces(opened, name):
        seen = (values.bfloat16() != starts.bfloat16()).float()
        visible += seen @ seen.T  # exact: counts of at most 2^24
        changes = (values - starts).double()
        products += changes @ changes.T
    size = math.prod(opened[0].shapes[name])
    return {"size": size, "products": products.tolist(), "visible": visible.tolist()}


def agreement(
    sizes: Float64[np.ndarray, " tensors"], products: Sums, visible: Sums
) -> dict[str, Float64[np.ndarray, "sources sources"]]:
    """Return equations (8) to (11) over some tensors; NaN where both changed no tensor."""
    squared, seen = (np.einsum("tii->ti", some) for some in (products, visible))
    lengths, changed = np.sqrt(squared.sum(axis=0)), 1.0 * (squared > 0)
    p, d = sizes @ changed, changed.T * sizes @ changed
    d[d == 0] = math.nan
    both, by_chance = visible.sum(axis=0), seen.T / sizes @ seen
    either = np.add.outer(seen.sum(axis=0), seen.sum(axis=0))
    return {
        "cosine": products.sum(axis=0) / (np.outer(lengths, lengths) * (d / d)),
        "chance": np.sqrt(d / np.outer(p, p)),
        "overlap": both / np.maximum(1.0, either - both),
        "overlap_by_chance": by_chance / np.maximum(1.0, either - by_chance),
    }


def interval(products: Sums, pairs: Sequence[Sequence[int]]) -> Interval:
    """Return the 95 % bootstrap interval of the mean cosine of pairs.

    It is NaN where two sources have changed less than two tensors in common.
    """
    first, second = np.transpose(pairs)
    squared, count = np.einsum("tii->ti", products), len(products)
    if ((squared[:, first] > 0) & (squared[:, second] > 0)).sum(axis=0).min() < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(float)
    lengths = np.sqrt(drawn @ squared)
    with np.errstate(invalid="ignore"):  # draws without a tensor that a source changed
        cosines = drawn @ products[:, first, second] / (lengths[:, first] * lengths[:, second])
    low, high = np.nanpercentile(cosines.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
