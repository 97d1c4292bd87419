"""Sources by method, and cosines of changes of different tensors."""

import math

import numpy as np
import pytest

from germline.analysis.cosine import Sums
from germline.analysis.groups import (
    layer_series,
    pairs_by_method,
    short_labels,
    sources_by_method,
)


@pytest.mark.parametrize(
    ("labels", "methods"),
    [
        (["a/es/seed-0", "a/es/seed-1", "a/lora"], {"es": [0, 1], "lora": [2]}),
        (["a/es", "b/es"], {"a/es": [0], "b/es": [1]}),
        (["a/es/seed-0", "b/es/seed-0"], {"a/es": [0], "b/es": [1]}),
        (["a/es/seed-0@3", "a/es/seed-0@5"], {"es@3": [0], "es@5": [1]}),
        (["run@3", "run@5"], {"run@3": [0], "run@5": [1]}),
    ],
)
def test_only_run_seeds_of_one_folder_are_one_method(labels, methods):
    assert sources_by_method(labels) == methods


def test_two_sources_have_two_labels():
    assert short_labels(["m/es/seed-0", "es"]) == ["es/seed-0", "es"]
    assert short_labels(["a/es", "b/es"]) == ["a/es", "b/es"]
    # Points of loaded models are kept by label.
    assert short_labels(["nano", "x/es", "nano"]) == ["nano (1)", "x/es", "nano (2)"]


def test_pairs_of_seeds_are_together():
    pairs = pairs_by_method(["m/es/seed-0", "m/es/seed-1", "m/grpo"])
    assert pairs == {"es": [(0, 1)], "es and grpo": [(0, 2), (1, 2)]}


def test_a_layer_that_one_pair_did_not_change_has_the_mean_of_the_others():
    values = {"x.0.w": [math.nan, 0.5], "x.1.w": [math.nan, math.nan], "x.2.w": [0.25, 0.75]}
    series = layer_series("all", lambda names: values[names[0]], 0, [*values])
    assert list(series.x) == [0, 2]
    assert list(series.y) == [0.5, 0.5]


def products(*changes):
    """Return the products of sources, each a list of changes of tensors."""
    by_tensor = [np.stack(some) for some in zip(*changes, strict=True)]
    return Sums(
        [f"t{n}" for n in range(len(by_tensor))],
        np.array([some.shape[1] for some in by_tensor], dtype=np.float64),
        *(np.stack([some @ some.T for some in by_tensor]) for _ in range(2)),
    )


def test_the_chance_level_is_that_of_random_directions_on_other_tensors():
    generator, zero = np.random.default_rng(0), np.zeros(40)
    found = []
    for _ in range(2000):
        first = [generator.normal(size=40) for _ in range(3)]
        other = [generator.normal(size=40), zero, zero]
        found.append(products(first, other).of(["t0", "t1", "t2"], [(0, 1)]))
    spread = float(np.std([one["cosine"] for one in found]))
    assert found[0]["chance"] == pytest.approx(math.sqrt(40 / (120 * 40)))
    assert spread == pytest.approx(found[0]["chance"][0], rel=0.15)


def test_one_tensor_in_common_has_no_interval():
    one, zero = np.ones(4), np.zeros(4)
    both = products([one, one, one], [one, zero, zero], [one, one, zero])
    names = ["t0", "t1", "t2"]
    assert math.isnan(both.interval(names, [(0, 1)])[0])
    low, high = both.interval(names, [(0, 2)])
    assert math.sqrt(1 / 3) <= low < math.sqrt(2 / 3) < high < 1.001
