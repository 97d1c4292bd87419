"""How much the changes of runs agree, and the changes up to several generations of one run.

With the changes D and E that two sources made, to p and q numbers of which d are the same,

    (1)  cosine = D E / (|D| |E|)
    (2)  chance = sqrt(d / (p q))                    standard deviation of (1) for random directions
    (3)  random signs = sqrt(sum D^2 E^2) / (|D| |E|)       and for these magnitudes, random signs

Changes of few large weights agree by chance more often than (2) says, which (3) accounts for. The
interval of a cosine over many tensors is a bootstrap over the tensors: layers are not independent
numbers, and training moves some of them alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from germline.analysis.groups import layer_series, names_by_module, pairs_by_method
from germline.analysis.request import Request, Result
from germline.analysis.weights import CHUNK, Weights, row_ranges
from germline.config.base import Section
from germline.report.charts import Chart
from germline.report.text_format import number
from germline.types import GermlineError

RESAMPLES = 1000

MOST_CURVES = 6
"""Curves of a chart; of more methods, all pairs of different methods make one curve."""


class Settings(Section):
    """Settings of `germline analyze cosine`: none."""


@dataclass(frozen=True)
class Products:
    """Sums over the numbers of each tensor.

    Attributes:
        names: of the tensors.
        sizes: numbers in each, `[tensors]`.
        products: of the changes of two sources, `[tensors, sources, sources]`.
        squares: of their squares, likewise.
    """

    names: Sequence[str]
    sizes: Float64[np.ndarray, " tensors"]
    products: Float64[np.ndarray, "tensors sources sources"]
    squares: Float64[np.ndarray, "tensors sources sources"]

    def of(self, names: Sequence[str], pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Return equations (1) to (3) of pairs over some tensors, NaN where one has no change."""
        first, second = zip(*pairs, strict=True)
        kept = self._places(names)
        moved = np.einsum("tii->ti", self.products[kept]) > 0
        sizes = self.sizes[kept]
        both = (moved[:, first] & moved[:, second]).T @ sizes
        each = moved.T @ sizes
        total = self.products[kept].sum(axis=0)
        lengths = np.sqrt(np.diag(total))
        lengths = np.where(both, lengths[[*first]] * lengths[[*second]], np.nan)
        of_both = np.where(both, each[[*first]] * each[[*second]], np.nan)
        return {
            "cosine": total[first, second] / lengths,
            "chance": np.sqrt(both / of_both),
            "random_signs": np.sqrt(self.squares[kept].sum(axis=0)[first, second]) / lengths,
        }

    def interval(
        self, names: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> tuple[float, float]:
        """Return the 95 % bootstrap interval of the mean cosine of pairs.

        It is NaN where two sources have changed less than two tensors in common.
        """
        kept = self.products[self._places(names)]
        count, generator = len(kept), np.random.default_rng(0)
        drawn = generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
        sums = np.einsum("rt,tij->rij", drawn.astype(float), kept)
        first, second = zip(*pairs, strict=True)
        moved = np.einsum("tii->ti", kept) > 0
        shared = (moved[:, first] & moved[:, second]).sum(axis=0)
        lengths = np.sqrt(np.einsum("rii->ri", sums))
        lengths = lengths[:, first] * lengths[:, second]
        if shared.min() < 2 or not lengths.all(axis=1).any():
            return math.nan, math.nan
        whole = lengths.all(axis=1)
        means = (sums[whole][:, first, second] / lengths[whole]).mean(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        return float(low), float(high)

    def _places(self, names: Sequence[str]) -> list[int]:
        given = {*names}
        return [place for place, name in enumerate(self.names) if name in given]


def measure(request: Request, settings: Settings) -> Result:
    """Measure the cosines of all pairs of sources."""
    opened = request.opened
    if len(opened) < 2:
        raise GermlineError(
            "analyze cosine: compare two sources, or two generations of one: -g 10 -g 20"
        )
    kept = request.kept_rows(settings)
    names = request.names
    rows = []
    for name in names:
        request.watch(f"cosine: {name}")
        rows.append(kept.row(name, partial(_measure, opened, name)))
    sums = ([row[key] for row in rows] for key in ("sizes", "products", "squares"))
    products = Products(names, *(np.array(some, dtype=np.float64) for some in sums))
    labels = [one.label for one in opened]
    kinds = {"all": names, **names_by_module(names)}
    means: list[dict[str, Any]] = []
    for methods, pairs in pairs_by_method(labels).items():
        for kind, some in kinds.items():
            values = products.of(some, pairs)
            changed = [p for p, one in zip(pairs, values["cosine"], strict=True) if one == one]
            if changed:
                low, high = products.interval(some, changed)
                found = {key: float(np.nanmean(each)) for key, each in values.items()}
                row = {"methods": methods, "module": kind, "pairs": len(changed), **found}
                means.append({**row, "low": low, "high": high})
    columns = ("pairs", "cosine", "low", "high", "chance", "random_signs")
    every = [pair for pairs in pairs_by_method(labels).values() for pair in pairs]
    cosines = products.of(names, every)["cosine"].tolist()
    return Result(
        "Cosine of the changes",
        ["methods", "module", *columns[:2], "95 % from", "to", "chance", "random signs"],
        [[r["methods"], r["module"], *(number(r[key]) for key in columns)] for r in means],
        [_chart(products, labels)],
        {
            "means": means,
            "pairs": [
                {"pair": [labels[a], labels[b]], "cosine": cosine}
                for (a, b), cosine in zip(every, cosines, strict=True)
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


def _chart(products: Products, labels: Sequence[str]) -> Chart:
    """Chart the cosines by layer, with the range of the pairs and the level of chance."""
    groups = dict(pairs_by_method(labels))
    if len(groups) > MOST_CURVES:
        different = [name for name in groups if " and " in name]
        groups["different methods"] = [pair for name in different for pair in groups.pop(name)]

    def of_layer(pairs: Sequence[tuple[int, int]], key: str, names: list[str]) -> list[float]:
        return list(products.of(names, pairs)[key])

    curves = [
        layer_series(name, color, products.names, partial(of_layer, pairs, "cosine"))
        for color, (name, pairs) in enumerate(groups.items())
    ]
    every = [pair for pairs in groups.values() for pair in pairs]
    chance = layer_series("chance", 6, products.names, partial(of_layer, every, "chance"))
    chance = replace(chance, style="dashed", low=(), high=())
    return Chart("cosine of the changes", "", "layer", [*curves, chance])
