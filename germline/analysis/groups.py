"""Tensors by layer and kind of module, and sources by method: what tables and charts average."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from germline.record.atomic_files import Row
from germline.report.charts import Series


def names_by_module(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the tensors of each kind of module, such as `q_proj` or `q_proj.bias`."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind = re.sub(r".*\.(?!bias$)", "", name.removesuffix(".weight"))
        kinds.setdefault(kind, []).append(name)
    return kinds


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


def sources_by_method(labels: Sequence[str]) -> Mapping[str, list[int]]:
    """Return the places of sources by name; those of a folder of run seeds are one method."""
    groups: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        method = re.sub(r"/seed-[^/@]*(@-?\d+)?$", r"\1", label)
        groups.setdefault(method, []).append(place)
    return dict(zip(short_labels([*groups]), groups.values(), strict=True))


def pairs_by_method(labels: Sequence[str]) -> Mapping[str, list[tuple[int, int]]]:
    """Return the pairs of sources, those between seeds of the same two methods together."""
    owner = {at: name for name, places in sources_by_method(labels).items() for at in places}
    pairs: dict[str, list[tuple[int, int]]] = {}
    for first, second in combinations(range(len(labels)), 2):
        names = dict.fromkeys([owner[first], owner[second]])
        pairs.setdefault(" and ".join(names), []).append((first, second))
    return pairs


def layer_series(
    label: str, values: Callable[[list[str]], list[float]], color: int, names: Sequence[str]
) -> Series:
    """Return the mean over some values of each layer, with the range if there are several.

    Values that are NaN do not count.
    """
    layers: dict[int, list[str]] = {}
    for name in names:
        if layer := re.search(r"\.(\d+)\.", name):
            layers.setdefault(int(layer[1]), []).append(name)
    found = {at: np.array(values(some)) for at, some in sorted(layers.items())}
    known = {at: some[~np.isnan(some)] for at, some in found.items() if not np.isnan(some).all()}
    means, low, high = ([f(some) for some in known.values()] for f in (np.mean, np.min, np.max))
    is_range = any(len(some) > 1 for some in known.values())
    return Series(label, [*known], means, low * is_range, high * is_range, color)


def lines(rows: Sequence[Row], by: str, x: str, y: str) -> list[Series]:
    """Return a line for each value of `by`, with a band where `y` is a mean with an interval."""
    found = []
    for color, label in enumerate(dict.fromkeys(row[by] for row in rows)):
        some = [row for row in rows if row[by] == label]
        values = [row[y] if isinstance(row[y], tuple) else (row[y], ()) for row in some]
        means, intervals = zip(*values, strict=True)
        low, high = zip(*intervals, strict=True) if all(intervals) else ((), ())
        found.append(Series(label, [row[x] for row in some], means, low, high, color))
    return found


def unchanged(label: str) -> str:
    """Return the note of a source that has the weights of its start."""
    return f"{label} has the weights of its start: nothing changed"
