"""Tensors by layer and kind of module, and sources by method: what tables and charts average."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from germline.evaluation.statistics import Interval
from germline.record.atomic_files import Row
from germline.report.charts import Series, Style

Estimate = tuple[float, Interval]
"""A mean, and its 95 % interval."""


def names_by_module(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the tensors of each kind of module, such as `q_proj` or `q_proj.bias`."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind = re.sub(r".*\.(?!bias$)", "", name.removesuffix(".weight"))
        kinds.setdefault(kind, []).append(name)
    return kinds


def names_by_layer(names: Sequence[str]) -> dict[int, list[str]]:
    """Return the tensors of each layer, in order."""
    layers: dict[int, list[str]] = {}
    for name in names:
        if layer := re.search(r"\.(\d+)\.", name):
            layers.setdefault(int(layer[1]), []).append(name)
    return dict(sorted(layers.items()))


def short_labels(labels: Sequence[str]) -> list[str]:
    """Return a label for each path: its last name, with METHOD before `seed-0`.

    Where two are alike, whole paths are returned, with numbers where they are alike as well, such
    as the names of loaded models: results are kept by label.
    """
    paths = [Path(label) for label in labels]
    short = ["/".join(one.parts[-1 - one.name.startswith("seed-") :]) for one in paths]
    numbered = [
        label if labels.count(label) == 1 else f"{label} ({labels[: at + 1].count(label)})"
        for at, label in enumerate(labels)
    ]
    return short if len({*short}) == len(short) else numbered


def methods_of(labels: Sequence[str]) -> list[str]:
    """Return the method of each source; those of a folder of run seeds are of one method."""
    folders = [re.sub(r"/seed-[^/@]*(@-?\d+)?$", r"\1", label) for label in labels]
    different = [*dict.fromkeys(folders)]
    short = dict(zip(different, short_labels(different), strict=True))
    return [short[folder] for folder in folders]


def pairs_by_method(labels: Sequence[str]) -> Mapping[str, list[tuple[int, int]]]:
    """Return the pairs of sources, those between seeds of the same two methods together."""
    methods = methods_of(labels)
    pairs: dict[str, list[tuple[int, int]]] = {}
    for first, second in combinations(range(len(labels)), 2):
        names = dict.fromkeys([methods[first], methods[second]])
        pairs.setdefault(" and ".join(names), []).append((first, second))
    return pairs


def lines(
    rows: Sequence[Row], by: str, x: str, y: str, style: Style = "line", first_color: int = 0
) -> list[Series]:
    """Return a line for each value of `by`: the mean of `y` over the rows that have the same `x`.

    Its band is the range of several rows, or the interval of a single mean that has one; dashed
    lines have none.
    """
    found = []
    for color, label in enumerate(dict.fromkeys(row[by] for row in rows), first_color):
        at: dict[float, list[Estimate]] = {}
        for row in rows:
            value = row[y] if isinstance(row[y], tuple) else (row[y], (row[y], row[y]))
            if row[by] == label and value[0] is not None and not math.isnan(value[0]):
                at.setdefault(row[x], []).append(value)
        if at:
            means = [float(np.mean([mean for mean, _ in some])) for some in at.values()]
            low, high = zip(*map(_ends, at.values()), strict=True)
            band = (low, high) if low != high and style == "line" else ((), ())
            found.append(Series(label, [*at], means, *band, color, style))
    return found


def _ends(values: Sequence[Estimate]) -> Interval:
    means = [mean for mean, _ in values]
    return values[0][1] if len(values) == 1 else (min(means), max(means))
