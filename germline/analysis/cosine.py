"""How much the changes of runs agree, and the changes up to several generations of one run.

With the changes D and E that two sources made, to p and q numbers of which d are the same,

    (1)  cosine = D E / (|D| |E|)
    (2)  chance = sqrt(d / (p q))           standard deviation of (1) for random directions

Changes of few large weights agree by chance more often than (2) says. The interval of a cosine over
many tensors is a bootstrap over the tensors: layers are not independent numbers, and training moves
some of them alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from germline.analysis.groups import layer_series, names_by_module, pairs_by_method
from germline.analysis.request import Request, Result
from germline.analysis.weights import Weights, pieces
from germline.config.base import Section
from germline.evaluation.statistics import Interval
from germline.record.atomic_files import Row
from germline.report.charts import Chart
from germline.types import GermlineError

RESAMPLES = 1000

MOST_CURVES = 6
"""Curves of a chart; of more methods, all pairs of different methods make one curve."""

COLUMNS = {
    "methods": "methods",
    "module": "module",
    "pairs": "pairs",
    "cosine": "cosine",
    "chance": "chance",
}

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Products:
    """Sums over the numbers of each tensor.

    Attributes:
        names: of the tensors.
        sizes: numbers in each, `[tensors]`.
        products: of the changes of two sources, `[tensors, sources, sources]`.
    """

    names: Sequence[str]
    sizes: Float64[np.ndarray, " tensors"]
    products: Float64[np.ndarray, "tensors sources sources"]

    def of(self, names: Sequence[str]) -> dict[str, Float64[np.ndarray, "sources sources"]]:
        """Return equations (1) and (2) over some tensors, NaN where two sources changed none."""
        kept = np.isin(self.names, names)
        moved = (np.einsum("tii->ti", self.products[kept]) > 0).astype(float)
        shared = (moved.T * self.sizes[kept]) @ moved
        shared[shared == 0] = math.nan
        products = self.products[kept].sum(axis=0)
        lengths = np.sqrt(np.outer(np.diag(products), np.diag(products))) * (shared / shared)
        return {
            "cosine": products / lengths,
            "chance": np.sqrt(shared / np.outer(np.diag(shared), np.diag(shared))),
        }

    def interval(self, names: Sequence[str], pairs: Pairs) -> Interval:
        """Return the 95 % bootstrap interval of the mean cosine of pairs.

        It is NaN where two sources have changed less than two tensors in common.
        """
        kept = self.products[np.isin(self.names, names)]
        at, count = tuple(zip(*pairs, strict=True)), len(kept)
        moved = np.einsum("tii->ti", kept) > 0
        if (moved[:, at[0]] & moved[:, at[1]]).sum(axis=0).min() < 2:
            return math.nan, math.nan
        drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
        sums = np.tensordot(drawn.astype(float), kept, 1)
        lengths = np.sqrt(np.einsum("rii->ri", sums))
        with np.errstate(invalid="ignore"):  # draws without a tensor that a source changed
            cosines = sums[:, at[0], at[1]] / (lengths[:, at[0]] * lengths[:, at[1]])
        low, high = np.nanpercentile(cosines.mean(axis=1), [2.5, 97.5])
        return float(low), float(high)


def measure(request: Request, settings: Section) -> Result:
    """Measure the cosines of all pairs of sources."""
    opened, names = request.opened, request.names
    if len(opened) < 2:
        raise GermlineError(
            "analyze cosine: compare two sources, or two generations of one: -g 10 -g 20"
        )
    kept = request.kept_rows(settings)
    found = []
    for name in names:
        request.watch(f"cosine: {name}")
        found.append(kept.row(name, partial(_measure, opened, name)))
    sums = ([row[key] for row in found] for key in ("size", "products"))
    products = Products(names, *(np.array(some, dtype=np.float64) for some in sums))
    labels = [one.label for one in opened]
    groups, whole = pairs_by_method(labels), products.of(names)["cosine"]
    rows: list[Row] = []
    for methods, pairs in groups.items():
        for kind, some in {"all": names, **names_by_module(names)}.items():
            values = products.of(some)
            known = [pair for pair in pairs if not math.isnan(values["cosine"][pair])]
            if known:
                at = tuple(zip(*known, strict=True))
                mean, chance = (float(one[at].mean()) for one in values.values())
                cosine = mean, products.interval(some, known)
                row = {"methods": methods, "module": kind, "pairs": len(known)}
                rows.append({**row, "cosine": cosine, "chance": chance})
    of_pairs = [
        {"pair": [labels[a], labels[b]], "cosine": float(whole[a, b])}
        for pairs in groups.values()
        for a, b in pairs
    ]
    return Result(
        "Cosine of the changes",
        COLUMNS,
        rows,
        [_chart(products, groups)],
        {"pairs": of_pairs},
        _notes(labels, products.products.sum(axis=0)),
    )


def _measure(opened: Sequence[Weights], name: str) -> Mapping[str, Any]:
    products = torch.zeros(len(opened), len(opened), dtype=torch.float64)
    for starts, values in pieces(opened, name):
        changes = (values - starts).double()
        products += changes @ changes.T
    return {"size": math.prod(opened[0].shapes[name]), "products": products.tolist()}


def _notes(labels: Sequence[str], products: Float64[np.ndarray, "sources sources"]) -> list[str]:
    """Name sources that did not change, and pairs that changed alike."""
    norms = np.diag(products)
    same = [label for label, norm in zip(labels, norms, strict=True) if not norm]
    alike = [
        f"{labels[a]} and {labels[b]}: the same change of every weight"
        for a, b in combinations(range(len(labels)), 2)
        if norms[a] and norms[a] == norms[b] == products[a, b]
    ]
    return [f"{label} has the weights of its start: nothing changed" for label in same] + alike


def _chart(products: Products, groups: Mapping[str, Pairs]) -> Chart:
    """Chart the cosines by layer, with the range of the pairs and the level of chance."""
    drawn = dict(groups)
    if len(drawn) > MOST_CURVES:
        different = [name for name in drawn if " and " in name]
        drawn["different methods"] = [pair for name in different for pair in drawn.pop(name)]

    def of_layer(pairs: Pairs, key: str, names: list[str]) -> list[float]:
        return list(products.of(names)[key][tuple(zip(*pairs, strict=True))])

    curves = [
        layer_series(name, partial(of_layer, pairs, "cosine"), color, products.names)
        for color, (name, pairs) in enumerate(drawn.items())
    ]
    every = [pair for pairs in drawn.values() for pair in pairs]
    chance = layer_series("chance", partial(of_layer, every, "chance"), 6, products.names)
    chance = replace(chance, style="dashed", low=(), high=())
    return Chart("cosine of the changes", "", "layer", [*curves, chance])
