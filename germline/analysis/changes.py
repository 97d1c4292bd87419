"""Changes of the weights: of each run (`deltas`), of pairs (`cosine`), step by step (`trajectory`).

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

**Trajectory.** The updates of the journal are applied one after another. With the steps s_1 ... s_T
of theta, of the searched numbers (A and B of an adapter), and their sums x_t,

    (12) G = s_i s_j                              Gram matrix of the steps
    (13) straightness = |x_T| / sum |s_t|         1 / sqrt(T) for independent steps of one length
    (14) learned = (|x_T|^2 - sum |s_t|^2) / |x_T|^2      share of the way that steps have in common
    (15) alignment = mean cosine of consecutive steps
    (16) principal directions: eigenvectors of the Gram matrix of x_t - mean x

Independent steps add up as squares, so (14) is 0 for a random walk and 1 - 1 / T for equal steps.
A random walk has explained shares (16) of 6 / (pi k)^2: 61 %, 15 %, 7 % (Antognini and
Sohl-Dickstein 2018, arXiv 1806.08805); a path is no random walk because its first directions
explain much. A run that followed gradients has the steps between its snapshots.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from germline.analysis.weights import Request, Result, Weights, pairs_by_method, pieces
from germline.checkpoint import follows_gradients, snapshot_generations, with_steps
from germline.config.base import Section
from germline.engines.master_weights import Masters
from germline.evaluation.statistics import Interval
from germline.record.atomic_files import Row
from germline.report.charts import Chart, mean_lines
from germline.run.build_parts import strategy_of_run
from germline.run.weights import load_engine
from germline.signal_metrics import walked
from germline.types import GermlineError

NUMBERS = 1 << 26
"""Numbers, 256 MB in fp32, of the largest matrix that has a spectrum, and of all positions of a
path: of large models, an even sample of each tensor is followed."""

SUBSPACE = 8
"""Singular vectors whose span is compared: equation (7)."""

FEWEST = 10
"""Eigenvalues of the shortest tail that a power law is fitted to."""

MOST_CURVES = 6
"""Curves of a chart; of more methods, all pairs of different methods make one curve."""

Sums = Float64[np.ndarray, "tensors sources sources"]
"""Of a tensor and two sources: product of the changes, or count of weights visible in both."""


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
        of, about = tensors.setdefault(one.label, {}), (_walk(one), settings.spectrum_width)
        for name in request.names:
            of[name] = request.row(f"{one.label} {name}", _measure, one, name, *about)
        for group, some in request.groups.items():
            row = {"source": one.label, "method": method, "module": group}
            rows.append(row | _total([of[name] for name in some]))
    notes = unchanged(request, [row["norm"] for row in rows if row["module"] == "all"])
    layers = [row for row in rows if isinstance(row["module"], int)]
    drawn = [row | {key: row[key] or None for key in ("norm", "random_walk")} for row in layers]
    norms = mean_lines(drawn, "method", "module", "norm")
    norms += mean_lines(drawn, "method", "module", "random_walk", "dashed", ": walk")
    visible = mean_lines(layers, "method", "module", "visible_in_bf16")
    charts = [
        Chart("norm of the change", "", "layer", norms, log_y=any(row["norm"] for row in layers)),
        Chart("share visible in bf16", "", "layer", visible),
    ]
    shown = [row for row in rows if row["norm"] and (settings.layers or row not in layers)]
    values = {"tensors": tensors}
    return Result("Change of the weights", shown, charts, values, notes, hidden=["method"])


def unchanged(request: Request, norms: Sequence[float] | np.ndarray) -> list[str]:
    """Return a note for each source whose change has the norm 0."""
    labels = [label for label, norm in zip(request.labels, norms, strict=True) if not norm]
    return [f"{label} has the weights of its start: nothing changed" for label in labels]


def _measure(one: Weights, name: str, walk: float | None, spectrum_width: int) -> Row:
    assert one.start is not None
    shape, sums = one.shapes[name], torch.zeros(4, dtype=torch.float64)
    for start, value in pieces([one], name):
        visible = (value.bfloat16() != start.bfloat16()).sum()
        change = value.sub_(start)
        squares = [change.square().sum(), start.square_().sum()]
        sums += torch.stack([*squares, change.count_nonzero(), visible])
    size = math.prod(shape)
    change, start, changed, visible = sums.tolist()
    row: Row = {"size": size, "norm": math.sqrt(change), "start_norm": math.sqrt(start)}
    row |= {"changed": changed / size, "visible_in_bf16": visible / size}
    unit = one.units.get(name, 0.0) * math.sqrt(size)
    row["random_walk"] = None if walk is None else unit * walk
    if change and len(shape) == 2 and min(shape) > 1 and size <= NUMBERS:
        row |= spectrum(one.start.read(name), one.read(name), spectrum_width)
    return row


def _walk(one: Weights) -> float | None:
    """Return the root mean square of a weight's random walk in units; None of other methods."""
    if one.directory is None or one.directory.config.space.kind not in ("full", "low_rank"):
        return None
    steps = walked([entry.update for entry in one.entries], one.directory.config.optimizer)
    return steps[-1] if steps else None


def _total(tensors: Sequence[Mapping[str, Any]]) -> Row:
    """Sum norms as squares, average shares by size, and average the spectra of tensors."""

    def of(key: str) -> list[float]:
        return [one[key] for one in tensors if one.get(key) is not None]

    norm, start, walks = math.hypot(*of("norm")), math.hypot(*of("start_norm")), of("random_walk")
    shares, spectra = ("changed", "visible_in_bf16"), ("alpha_before", "alpha_after", "angle")
    return {
        "norm": norm,
        "random_walk": math.hypot(*walks) if walks else None,
        "relative": norm / start if start else None,
        **{key: float(np.average(of(key), weights=of("size"))) for key in shares},
        **{key: float(np.mean(of(key))) if of(key) else None for key in ("stable_rank", *spectra)},
    }


def spectrum(
    start: Float32[Tensor, "rows columns"], end: Float32[Tensor, "rows columns"], widest: int
) -> dict[str, float]:
    """Return the stable rank of a change, the alpha before and after, and the angle in degrees.

    Matrices that are wider than `widest`, or too narrow for the angle, have the first only.
    """
    row = {"stable_rank": stable_rank(end - start)}
    if SUBSPACE < min(start.shape) <= widest:
        from scipy.linalg import subspace_angles

        (before, spans), (after, spanned) = map(alpha_and_span, (start, end))
        angle = float(np.degrees(subspace_angles(spans, spanned).max()))
        row |= {"alpha_before": before, "alpha_after": after, "angle": angle}
    return row


def alpha_and_span(
    matrix: Float32[Tensor, "rows columns"],
) -> tuple[float, Float64[np.ndarray, "narrow vectors"]]:
    """Return alpha (6), and the first singular vectors on the shorter side of a matrix."""
    narrow = (matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T).double()
    values, vectors = torch.linalg.eigh(narrow.T @ narrow)  # in ascending order
    return power_law_exponent(values.clamp(min=0).numpy()), vectors[:, -SUBSPACE:].numpy()


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
        if logs.any():
            alpha, steps = 1 + 1 / float(logs.mean()), np.arange(len(logs)) / len(logs)
            above = 1 - np.exp(logs * (1 - alpha)) - steps  # fitted less observed shares
            best = min(best, (np.abs([above, above - 1 / len(logs)]).max(), alpha))
    return best[1]


def cosine(request: Request, settings: Section) -> Result:
    """Measure the cosines of all pairs of sources."""
    opened, names, labels = request.opened, request.names, request.labels
    kept = [request.row(name, _measure_all, opened, name) for name in names]
    sums = [np.array([row[key] for row in kept], float) for key in ("size", "products", "visible")]
    rows: list[Row] = []
    layers: list[Row] = []
    by_method = pairs_by_method(request.methods)
    for (methods, pairs), (group, some) in product(by_method.items(), request.groups.items()):
        part = [one[np.isin(names, some)] for one in sums]
        values = {key: one[tuple(np.transpose(pairs))] for key, one in agreement(*part).items()}
        known = ~np.isnan(values["cosine"])
        if isinstance(group, int):
            is_many = len(by_method) > MOST_CURVES and " and " in methods
            about = {"curve": "different methods" if is_many else methods, "layer": group}
            each = zip(values["cosine"], values["chance"], strict=True)
            layers += [{**about, "cosine": one, "of": "chance", "chance": by} for one, by in each]
        elif known.any():
            row: Row = {"methods": methods, "module": group, "pairs": int(known.sum())}
            row |= {key: float(value[known].mean()) for key, value in values.items()}
            row["cosine"] = row["cosine"], interval(part[1], np.array(pairs)[known])
            rows.append(row)
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
    drawn = rng.multinomial(count, np.full(count, 1 / count), 1000).astype(float)
    lengths = np.sqrt(drawn @ squared)
    with np.errstate(invalid="ignore"):  # draws without a tensor that a source changed
        cosines = drawn @ products[:, first, second] / (lengths[:, first] * lengths[:, second])
    low, high = np.nanpercentile(cosines.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def trajectory(request: Request, settings: Section) -> Result:
    """Measure the path of every run."""
    rows: list[Row] = []
    points: list[Row] = []
    for one in request.opened:
        if one.directory is None:
            raise GermlineError(f"analyze trajectory: {one.label} is no run: it has no journal")
        rows.append(row := {"run": one.label, **request.row(one.label, _measure_path, one)})
        each = zip(row["moved"], row["walked"], *zip(*row["directions"], strict=True), strict=True)
        points += [
            {"run": one.label, "steps": place, "moved": moved, "walked": walked, "x": x, "y": y}
            for place, (moved, walked, x, y) in enumerate(each)
        ]
    distances = mean_lines(points, "run", "steps", "moved")
    distances += mean_lines(points, "run", "steps", "walked", "dashed", ": walk")
    path = mean_lines(points, "run", "x", "y")
    charts = [
        Chart("2nd principal direction", "", "1st principal direction", path),
        Chart("distance from the start", "", "steps", distances),
    ]
    notes = ["A random walk: first principal directions 0.61, 0.15, 0.07; learned and alignment 0."]
    hidden = ["key", "walk", "moved", "walked", "directions"]
    return Result("Path of the center", rows, charts, notes=notes, hidden=hidden)


def _measure_path(run: Weights) -> Mapping[str, Any]:
    most = NUMBERS // (len(run.entries) + 1)
    positions = [_sample(one, most) for one in _positions(run)]
    steps = np.diff(np.stack(positions), axis=0).astype(np.float64)
    return path_statistics(steps @ steps.T)


def _positions(run: Weights) -> Iterator[Masters]:
    """Yield the masters at the start and after each update, or of each snapshot."""
    assert run.directory is not None
    directory, entries, kept = run.directory, run.entries, [-1]
    if follows_gradients(entries):
        kept += [one for one in snapshot_generations(directory.snapshots) if one < len(entries)]
    for generation in kept:
        engine = load_engine(directory, generates=False, generation=generation)
        yield (masters := cast("Masters", engine.weights))
    if not follows_gradients(entries):
        for entry in with_steps(entries, strategy_of_run(directory.config, masters.dimension)):
            masters.apply(entry.update)
            yield masters


def _sample(weights: Masters, most: int) -> Float32[np.ndarray, " numbers"]:
    """Return an even sample of each searched tensor, scaled to the expected norm of all of it."""
    samples = []
    for info in weights.searched:
        values = weights.tensors[info.name].flatten()
        stride = math.ceil(len(values) * len(weights.searched) / most)
        sample = values[:: stride + (stride % 2 == 0)]  # odd: it meets all columns
        samples.append((sample * math.sqrt(len(values) / len(sample))).cpu().numpy())
    return np.concatenate(samples)


def path_statistics(gram: Float64[np.ndarray, "steps steps"]) -> dict[str, Any]:
    """Return equations (13) to (16) of a path, given the Gram matrix of its steps."""
    lengths = np.sqrt(np.diag(gram))
    moving = np.flatnonzero(lengths)
    if not len(moving):
        raise GermlineError("analyze trajectory: no update moved the center, so there is no path")
    gram, lengths, count = gram[np.ix_(moving, moving)], lengths[moving], len(moving)
    net, path, walk = math.sqrt(max(0.0, gram.sum())), lengths.sum(), math.sqrt((lengths**2).sum())
    sums = np.tril(np.ones((count + 1, count)), -1)  # x_t of the steps before it
    ways = sums @ gram @ sums.T
    centered = np.eye(count + 1) - 1 / (count + 1)
    values, vectors = np.linalg.eigh(centered @ ways @ centered)
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    cosines = gram / np.outer(lengths, lengths)
    shares = values / values.sum()
    return {
        "steps": count,
        "path": path,
        "net": net,
        "walk": walk,
        "straightness": net / path,
        "of_a_walk": walk / path,
        "learned": 1 - (walk / net) ** 2 if net else None,
        "alignment": float(np.mean(np.diag(cosines, 1))) if count > 1 else None,
        "1st_direction": float(shares[0]),
        "2nd": float(shares[1]),
        "moved": np.sqrt(np.diag(ways).clip(min=0)).tolist(),
        "walked": np.sqrt(sums @ lengths**2).tolist(),
        "directions": (vectors[:, :2] * np.sqrt(values[:2])).tolist(),
    }
