"""Tensors by layer and kind of module, and sources by method: what tables and charts average."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from germline.report.charts import Series


def layer_of(name: str) -> int | None:
    """Return the decoder block of a tensor, None outside the blocks."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else None


def module_of(name: str) -> str:
    """Return the kind of module that a tensor belongs to, such as `q_proj` or `q_proj.bias`."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2] + (
        ".bias" if name.endswith(".bias") else ""
    )


def names_by_module(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the tensors of each kind of module, in the order of the names."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(module_of(name), []).append(name)
    return kinds


def short_labels(labels: Sequence[str]) -> list[str]:
    """Return the last names of paths, with METHOD before `seed-0`; whole paths if two are alike."""
    paths = [Path(label) for label in labels]
    short = ["/".join(one.parts[-1 - one.name.startswith("seed-") :]) for one in paths]
    return short if len({*short}) == len(short) else list(labels)


def sources_by_method(labels: Sequence[str]) -> Mapping[str, list[int]]:
    """Return the places of sources by name; those of a folder of run seeds are one method."""
    groups: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        path, generation = Path(label), re.search(r"@-?\d+$", label)
        is_seed = path.name.startswith("seed-")
        suffix = generation[0] if generation else ""
        groups.setdefault(f"{path.parent}{suffix}" if is_seed else label, []).append(place)
    return dict(zip(short_labels([*groups]), groups.values(), strict=True))


def layer_series(
    label: str, color: int, names: Sequence[str], values: Callable[[list[str]], list[float]]
) -> Series:
    """Return the mean over some values of each layer, with the range if there are several.

    Values that are NaN do not count.
    """
    by_layer: dict[int, list[float]] = {}
    for layer in sorted({layer for name in names if (layer := layer_of(name)) is not None}):
        some = values([name for name in names if layer_of(name) == layer])
        if known := [one for one in some if not math.isnan(one)]:
            by_layer[layer] = known
    layers, found = [*by_layer], [*by_layer.values()]
    means = [float(np.mean(some)) for some in found]
    if all(len(some) == 1 for some in found):
        return Series(label, layers, means, color=color)
    return Series(label, layers, means, [*map(min, found)], [*map(max, found)], color)


def pairs_by_method(labels: Sequence[str]) -> Mapping[str, list[tuple[int, int]]]:
    """Return the pairs of sources, those between seeds of the same two methods together."""
    owner = {at: name for name, places in sources_by_method(labels).items() for at in places}
    pairs: dict[str, list[tuple[int, int]]] = {}
    for first, second in combinations(range(len(labels)), 2):
        names = dict.fromkeys([owner[first], owner[second]])
        pairs.setdefault(" and ".join(names), []).append((first, second))
    return pairs
