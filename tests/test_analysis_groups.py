"""Sources by method, and cosines of changes of different tensors."""

import math

import numpy as np
import pytest

from germline.analysis.changes import agreement, interval, pair_sums
from germline.analysis.groups import lines, methods_of, pairs_by_method, short_labels

KEYS = ("products", "visible")


@pytest.mark.parametrize(
    ("labels", "methods"),
    [
        (["a/es/seed-0", "a/es/seed-1", "a/lora"], ["es", "es", "lora"]),
        (["a/es", "b/es"], ["a/es", "b/es"]),
        (["a/es/seed-0", "b/es/seed-0"], ["a/es", "b/es"]),
        (["a/es/seed-0@3", "a/es/seed-0@5"], ["es@3", "es@5"]),
        (["run@3", "run@5"], ["run@3", "run@5"]),
    ],
)
def test_only_run_seeds_of_one_folder_are_one_method(labels, methods):
    assert methods_of(labels) == methods


def test_two_sources_have_two_labels():
    assert short_labels(["m/es/seed-0", "es"]) == ["es/seed-0", "es"]
    assert short_labels(["a/es", "b/es"]) == ["a/es", "b/es"]
    # Points of loaded models are kept by label.
    assert short_labels(["nano", "x/es", "nano"]) == ["nano (1)", "x/es", "nano (2)"]


def test_pairs_of_seeds_are_together():
    pairs = pairs_by_method(["m/es/seed-0", "m/es/seed-1", "m/grpo"])
    assert pairs == {"es": [(0, 1)], "es and grpo": [(0, 2), (1, 2)]}


def test_a_line_has_the_mean_and_the_range_of_its_rows_or_one_interval():
    values = [(0, math.nan), (0, 0.5), (1, math.nan), (2, 0.25), (2, 0.75)]
    rows = [{"of": "all", "layer": layer, "cosine": value} for layer, value in values]
    (line,) = lines(rows, "of", "layer", "cosine")
    assert (list(line.x), list(line.y)) == ([0, 2], [0.5, 0.5])
    assert (list(line.low), list(line.high)) == ([0.5, 0.25], [0.5, 0.75])
    (single,) = lines([{"of": "a", "t": 0, "score": (0.5, (0.25, 1.0))}], "of", "t", "score")
    assert (list(single.y), list(single.low), list(single.high)) == ([0.5], [0.25], [1.0])
    assert lines(rows[:2], "of", "layer", "cosine")[0].low == ()


def sums(*changes):
    """Return the sums of the first two sources, each a list of changes of tensors."""
    by_tensor = [np.stack(some) for some in zip(*changes, strict=True)]
    rows = [{"size": one.shape[1], **dict.fromkeys(KEYS, one @ one.T)} for one in by_tensor]
    return pair_sums(rows, [(0, 1)])


def test_the_chance_level_is_that_of_random_directions_on_other_tensors():
    generator, zero = np.random.default_rng(0), np.zeros(40)
    found = []
    for _ in range(2000):
        first = [generator.normal(size=40) for _ in range(3)]
        other = [generator.normal(size=40), zero, zero]
        found.append(agreement(sums(first, other)))
    spread = float(np.std([one["cosine"] for one in found]))
    assert found[0]["chance"] == pytest.approx(math.sqrt(40 / (120 * 40)))
    assert spread == pytest.approx(found[0]["chance"][0], rel=0.15)


def test_one_tensor_in_common_has_no_interval():
    one, zero = np.ones(4), np.zeros(4)
    assert math.isnan(interval(sums([one, one, one], [one, zero, zero]))[0])
    low, high = interval(sums([one, one, one], [one, one, zero]))
    assert math.sqrt(1 / 3) <= low < math.sqrt(2 / 3) < high < 1.001
