"""How much the changes of runs agree, and the changes up to several generations of one run.

With the changes D and E that two sources made, to p and q numbers of which d are the same,

    (1)  cosine = D E / (|D| |E|)
    (2)  chance = sqrt(d / (p q))           standard deviation of (1) for random directions
    (3)  overlap = |A & B| / |A | B|        of the weights whose change is visible in bf16
    (4)  overlap by chance = r s / (r + s - r s)     for shares r and s of each tensor

Changes of few large weights agree by chance more often than (2) says. The interval of a cosine over
many tensors is a bootstrap over the tensors: layers are not independent numbers, and training moves
some of them alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress

import numpy as np
import torch
from jaxtyping import Float64

from germline.analysis.groups import layer_series, names_by_module, pairs_by_method, unchanged
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

COLUMNS = ("methods", "module", "pairs", "cosine", "chance", "overlap", "overlap_by_chance")

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Sums:
    """Sums over the numbers of each tensor.

    Attributes:
        names: of the tensors.
        sizes: numbers in each, `[tensors]`.
        products: of the changes of two sources, `[tensors, sources, sources]`.
        visible: weights whose change is visible in bf16 in both of two sources, likewise.
    """

    names: Sequence[str]
    sizes: Float64[np.ndarray, " tensors"]
    products: Float64[np.ndarray, "tensors sources sources"]
    visible: Float64[np.ndarray, "tensors sources sources"]

    def of(self, names: Sequence[str], pairs: Pairs) -> dict[str, Float64[np.ndarray, " pairs"]]:
        """Return equations (1) to (4) over some tensors; NaN where both changed no tensor."""
        kept = np.isin(self.names, names)
        sizes, (a, b) = self.sizes[kept], np.transpose(pairs)
        product, first, second = self._of_pairs(names, pairs)
        p, q, d = (sizes @ moved for moved in (first > 0, second > 0, (first > 0) & (second > 0)))
        d[d == 0] = math.nan
        visible = np.einsum("tii->ti", self.visible[kept])
        shown, others = visible[:, a], visible[:, b]
        both = {
            "overlap": self.visible[kept][:, a, b].sum(axis=0),
            "overlap_by_chance": (shown * others / sizes[:, None]).sum(axis=0),
        }
        either = (shown + others).sum(axis=0)
        lengths = np.sqrt(first.sum(axis=0) * second.sum(axis=0)) * (d / d)
        return {
            "cosine": product.sum(axis=0) / lengths,
            "chance": np.sqrt(d / (p * q)),
            **{key: some / np.maximum(1.0, either - some) for key, some in both.items()},
        }

    def interval(self, names: Sequence[str], pairs: Pairs) -> Interval:
        """Return the 95 % bootstrap interval of the mean cosine of pairs.

        It is NaN where two sources have changed less than two tensors in common.
        """
        product, first, second = self._of_pairs(names, pairs)
        count = len(product)
        if ((first > 0) & (second > 0)).sum(axis=0).min() < 2:
            return math.nan, math.nan
        rng = np.random.default_rng(0)
        drawn = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(float)
        with np.errstate(invalid="ignore"):  # draws without a tensor that a source changed
            cosines = drawn @ product / np.sqrt((drawn @ first) * (drawn @ second))
        low, high = np.nanpercentile(cosines.mean(axis=1), [2.5, 97.5])
        return float(low), float(high)

    def _of_pairs(
        self, names: Sequence[str], pairs: Pairs
    ) -> tuple[Float64[np.ndarray, "tensors pairs"], ...]:
        """Return the products of pairs, and the squared norms of their first and second changes."""
        products, (a, b) = self.products[np.isin(self.names, names)], np.transpose(pairs)
        norms = np.einsum("tii->ti", products)
        return products[:, a, b], norms[:, a], norms[:, b]


def measure(request: Request, settings: Section) -> Result:
    """Measure the cosines of all pairs of sources."""
    opened, names = request.opened, request.names
    if len(opened) < 2:
        raise GermlineError(
            "analyze cosine: compare two sources, or two generations of one: -g 10 -g 20"
        )
    kept = [request.row(name, _measure, opened, name) for name in names]
    keys = ("size", "products", "visible")
    sums = Sums(names, *(np.array([row[key] for row in kept], dtype=float) for key in keys))
    labels = [one.label for one in opened]
    groups = pairs_by_method(labels)
    rows: list[Row] = []
    of_pairs: list[Row] = []
    for methods, pairs in groups.items():
        for kind, some in {"all": names, **names_by_module(names)}.items():
            values = sums.of(some, pairs)
            known = ~np.isnan(values["cosine"])
            if known.any():
                means = {key: float(value[known].mean()) for key, value in values.items()}
                cosine = means["cosine"], sums.interval(some, [*compress(pairs, known)])
                row = {"methods": methods, "module": kind, "pairs": int(known.sum())}
                rows.append({**row, **means, "cosine": cosine})
        cosines = zip(pairs, sums.of(names, pairs)["cosine"].tolist(), strict=True)
        of_pairs += [{"pair": [labels[a], labels[b]], "cosine": one} for (a, b), one in cosines]
    norms = zip(labels, np.diag(sums.products.sum(axis=0)), strict=True)
    notes = [unchanged(label) for label, norm in norms if not norm]
    charts = [_chart(sums, groups)]
    return Result("Cosine of the changes", COLUMNS, rows, charts, {"pairs": of_pairs}, notes)


def _measure(opened: Sequence[Weights], name: str) -> Row:
    products = torch.zeros(len(opened), len(opened), dtype=torch.float64)
    visible = torch.zeros_like(products)
    for starts, values in pieces(opened, name):
        seen = (values.bfloat16() != starts.bfloat16()).float()
        visible += seen @ seen.T  # exact: counts of at most 2^24
        changes = (values - starts).double()
        products += changes @ changes.T
    size = math.prod(opened[0].shapes[name])
    return {"size": size, "products": products.tolist(), "visible": visible.tolist()}


def _chart(sums: Sums, groups: Mapping[str, Pairs]) -> Chart:
    """Chart the cosines by layer, with the range of the pairs and the level of chance."""
    drawn = dict(groups)
    if len(drawn) > MOST_CURVES:
        different = [name for name in drawn if " and " in name]
        drawn["different methods"] = [pair for name in different for pair in drawn.pop(name)]

    def of_layer(pairs: Pairs, key: str, names: list[str]) -> list[float]:
        return list(sums.of(names, pairs)[key])

    curves = [
        layer_series(name, partial(of_layer, pairs, "cosine"), color, sums.names)
        for color, (name, pairs) in enumerate(drawn.items())
    ]
    every = [pair for pairs in drawn.values() for pair in pairs]
    chance = layer_series("chance", partial(of_layer, every, "chance"), 6, sums.names)
    chance = replace(chance, style="dashed", low=(), high=())
    return Chart("cosine of the changes", "", "layer", [*curves, chance])
