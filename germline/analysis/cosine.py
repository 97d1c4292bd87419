"""How much the changes of runs agree, and the changes up to several generations of one run.

With the changes D and E that two sources made to the same d numbers,

    (1)  cosine = D E / (|D| |E|)
    (2)  chance = sqrt(1 / d)                        standard deviation of (1) for random directions
    (3)  random signs = sqrt(sum D^2 E^2) / (|D| |E|)       and for these magnitudes, random signs

Changes of few large weights agree by chance more often than (2) says, which (3) accounts for. The
interval of a cosine over many tensors is a bootstrap over the tensors: layers are not independent
numbers, and training moves some of them alike.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from germline.analysis.groups import layer_series, module_of, pairs_by_method
from germline.analysis.request import Request, Result
from germline.analysis.weights import CHUNK, Weights, row_ranges, shared_names
from germline.config.base import Section
from germline.report.charts import Chart
from germline.report.text_format import number
from germline.types import GermlineError

RESAMPLES = 1000

MOST_CURVES = 6
"""Curves of a chart; of more methods, all pairs of different methods make one curve."""


class Settings(Section):
    """Settings of `germline analyze cosine`: none."""


class Products(NamedTuple):
    """Sums over the numbers of each tensor, as `[tensors, sources, sources]`.

    `products` are of two changes, `squares` of their squares; `sizes` is `[tensors]`.
    """

    names: list[str]
    sizes: Float64[np.ndarray, " tensors"]
    products: Float64[np.ndarray, "tensors sources sources"]
    squares: Float64[np.ndarray, "tensors sources sources"]

    def among(self, names: Sequence[str]) -> "Products":
        """Keep some tensors."""
        kept = [place for place, name in enumerate(self.names) if name in names]
        return Products(list(names), *(some[kept] for some in self[1:]))

    def cosine(self, pair: tuple[int, int]) -> dict[str, float]:
        """Return equations (1) to (3) of a pair over all tensors that both change; NaN of none."""
        a, b = pair
        both = (self.products[:, a, a] > 0) & (self.products[:, b, b] > 0)
        lengths = math.sqrt(self.products[:, a, a].sum() * self.products[:, b, b].sum())
        if not both.any():
            return dict.fromkeys(("cosine", "chance", "random_signs"), math.nan)
        return {
            "cosine": float(self.products[:, a, b].sum()) / lengths,
            "chance": 1 / math.sqrt(self.sizes[both].sum()),
            "random_signs": math.sqrt(self.squares[:, a, b].sum()) / lengths,
        }

    def interval(self, pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """Return the 95 % bootstrap interval of the mean cosine of pairs; NaN of one tensor."""
        count = len(self.names)
        if count < 2:
            return math.nan, math.nan
        generator = np.random.default_rng(0)
        drawn = generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
        sums = np.einsum("rt,tij->rij", drawn.astype(float), self.products)
        lengths = np.sqrt(np.einsum("rii->ri", sums))
        with np.errstate(invalid="ignore"):
            means = np.mean(
                [sums[:, a, b] / (lengths[:, a] * lengths[:, b]) for a, b in pairs], axis=0
            )
        low, high = np.nanpercentile(means, [2.5, 97.5])
        return float(low), float(high)


def measure(request: Request, settings: Settings) -> Result:
    """Measure the cosines of all pairs of sources."""
    opened = request.opened
    if len(opened) < 2:
        raise GermlineError(
            "analyze cosine: compare two sources, or two generations of one: -g 10 -g 20"
        )
    kept = request.kept_rows(settings)
    names = [name for name in shared_names(*opened[:2]) if all(name in o.shapes for o in opened)]
    rows = []
    for name in names:
        request.watch(f"cosine: {name}")
        rows.append(kept.row(name, partial(_measure, opened, name)))
    products = Products(names, *(np.array([r[k] for r in rows]) for k in Products._fields[1:]))
    labels = [one.label for one in opened]
    kinds = {kind: [n for n in names if module_of(n) == kind] for kind in map(module_of, names)}
    found: list[dict[str, Any]] = [
        {"methods": methods, "module": kind, **_over_pairs(products.among(some), pairs)}
        for methods, pairs in pairs_by_method(labels).items()
        for kind, some in {"all": names, **kinds}.items()
    ]
    found = [row for row in found if not math.isnan(row["cosine"])]
    columns = ("pairs", "cosine", "low", "high", "chance", "random_signs")
    return Result(
        "Cosine of the changes",
        ["methods", "module", *columns[:2], "95 % from", "to", "chance", "random signs"],
        [[r["methods"], r["module"], *(number(r[key]) for key in columns)] for r in found],
        [_chart(products, labels)],
        {
            "means": found,
            "sources": labels,
            "pairs": [
                {"pair": [labels[a], labels[b]], **products.cosine((a, b))}
                for pairs in pairs_by_method(labels).values()
                for a, b in pairs
            ],
        },
    )


def _measure(opened: Sequence[Weights], name: str) -> Mapping[str, Any]:
    products = torch.zeros(2, len(opened), len(opened), dtype=torch.float64)
    for first, end in row_ranges(opened[0].shape(name), CHUNK // len(opened)):
        pieces = []
        for one in opened:
            assert one.start is not None
            pieces.append(one.rows(name, first, end) - one.start.rows(name, first, end))
        changes = torch.stack(pieces).flatten(1).double()
        products[0] += changes @ changes.T
        products[1] += changes.square_() @ changes.T
    size = math.prod(opened[0].shape(name))
    return {"sizes": size, "products": products[0].tolist(), "squares": products[1].tolist()}


def _over_pairs(products: Products, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return means over pairs, with the interval of the cosine."""
    found = [products.cosine(pair) for pair in pairs]
    low, high = products.interval(pairs)
    means = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
    return {"pairs": len(pairs), **means, "low": low, "high": high}


def _chart(products: Products, labels: Sequence[str]) -> Chart:
    """Chart the cosines by layer, with the range of the pairs and the level of chance."""
    groups = dict(pairs_by_method(labels))
    if len(groups) > MOST_CURVES:
        different = [name for name in groups if " and " in name]
        groups["different methods"] = [pair for name in different for pair in groups.pop(name)]

    def of_layer(pairs: Sequence[tuple[int, int]], key: str, names: list[str]) -> list[float]:
        return [products.among(names).cosine(pair)[key] for pair in pairs]

    curves = [
        layer_series(name, color, products.names, partial(of_layer, pairs, "cosine"))
        for color, (name, pairs) in enumerate(groups.items())
    ]
    chance = layer_series("chance", 6, products.names, partial(of_layer, [(0, 1)], "chance"))
    return Chart("cosine of the changes", "", "layer", [*curves, chance])
