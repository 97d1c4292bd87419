"""Noise: exactly the frozen bits, statistically normal, unrelated wherever names differ.

The draws are fixed, so a statistical test passes always or never; its bound is about five standard
errors wide, which no correct noise would miss by chance.
"""

import hashlib
import itertools
import math

import numpy as np
import pytest

from germline import noise

NAME = "model.layers.0.self_attn.q_proj.weight"
TWIN = "model.layers.1.self_attn.q_proj.weight"


def correlation(a, b):
    """Correlation of two draws, in standard errors of the correlation of independent ones."""
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * math.sqrt(a.size)


def test_table_is_the_shipped_one_and_agrees_with_its_definition(tmp_path):
    assert (
        hashlib.sha256(noise.NORMAL_TABLE.astype("<f4").tobytes()).hexdigest() == noise.TABLE_DIGEST
    )
    table = noise.make_inverse_cdf_table()
    np.testing.assert_array_max_ulp(noise.NORMAL_TABLE, table, maxulp=1)
    with pytest.raises(ValueError, match="read-only"):
        noise.NORMAL_TABLE[0] = 0
    table[17] = 0
    np.save(tmp_path / "table.npy", table)
    with pytest.raises(RuntimeError, match="Reinstall germline"):
        noise._read_table(tmp_path / "table.npy")


def test_table_is_symmetric_with_unit_variance_and_documented_ends():
    table = noise.NORMAL_TABLE.astype(np.float64)
    assert np.array_equal(table, -table[::-1])
    assert np.all(np.diff(table) > 0)
    assert abs(np.mean(table**2) - 1) < 1e-8
    assert abs(np.mean(table**4) - 3 + 0.00075) < 1e-5
    assert table[-1] == pytest.approx(4.325, abs=5e-4)


@pytest.mark.parametrize("start", [0, 1, 3, 4, 15, 16, 17, 32_767, 32_768, 100_001])
@pytest.mark.parametrize("count", [0, 1, 16, 33, 32_768, 70_000])
def test_shard_draws_its_part_of_the_whole(start, count):
    whole = noise.weight_noise(5, 1, 2, NAME, start + count)
    assert np.array_equal(noise.weight_noise(5, 1, 2, NAME, count, start), whole[start:])


@pytest.mark.parametrize("count", [1, 16, 400, 12_000, 70_000])
def test_many_directions_at_once_equal_one_after_the_other(count):
    directions = [3, 0, 2**63, 7, 7, 1]
    together = noise.draw_noise_rows(5, 1, directions, NAME, count, start=5)
    assert noise.draw_noise_rows(5, 1, [], NAME, count).shape == (0, count)
    for row, direction in zip(together, directions, strict=True):
        assert np.array_equal(row, noise.weight_noise(5, 1, direction, NAME, count, start=5))


@pytest.mark.parametrize("sizes", [{"a": 32, "b": 16}, {"a": 7, "b": 33, "c": 1}])
@pytest.mark.parametrize("directions", [(4, 0, 9), ()])
def test_tensors_side_by_side_hold_what_each_holds_alone(directions, sizes):
    together = noise.concatenated_noise(3, 5, directions, sizes)
    alone = [noise.draw_noise_rows(3, 5, directions, name, size) for name, size in sizes.items()]
    assert np.array_equal(together, np.concatenate(alone, axis=1))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: noise.weight_noise(0, 0, -1, NAME, 4),
        lambda: noise.weight_noise(0, -1, 0, NAME, 4),
        lambda: noise.weight_noise(0, 0, 0, NAME, 4, start=-1),
        lambda: noise.weight_noise(0, 0, 0, NAME, -4),
        lambda: noise.sampling_uniforms(0, 0, "train", [-1], 4),
        lambda: noise.epoch_permutation(0, "train", -1, 4),
    ],
)
def test_negative_addresses_are_refused(draw):
    with pytest.raises(ValueError, match=r"-[14]"):
        draw()


def test_moments_are_those_of_the_normal_distribution():
    """tests/maths freezes the bits, so the distribution cannot change unnoticed."""
    million = noise.weight_noise(2026, 0, 0, NAME, 2**20).astype(np.float64)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        bound = 5 * math.sqrt(variance / million.size)
        assert abs(np.mean(million**power) - moment) < bound


def test_uniforms_lie_strictly_between_0_and_1_and_are_even():
    drawn = noise.sampling_uniforms(0, 0, "train", range(2000), 100)
    assert drawn.min() > 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=100, range=(0, 1))
    chi_square = np.sum((counts - drawn.size / 100) ** 2) / (drawn.size / 100)
    assert abs(chi_square - 99) < 5 * math.sqrt(2 * 99)


def assert_unrelated(draws):
    for (name_a, a), (name_b, b) in itertools.combinations(draws.items(), 2):
        assert abs(correlation(a, b)) < 5, f"{name_a} and {name_b} are correlated"
        # A match of 16 bits by chance: one element in 65,536.
        assert np.mean(a == b) < 1e-3, f"{name_a} and {name_b} share values"


def drawn(run_seed=1, generation=0, direction=0, name=NAME):
    return noise.weight_noise(run_seed, generation, direction, name, 20_000)


NAMES = ["a", "b", "ab", "a.b", "a\0b", "", NAME, NAME + ".A", NAME + ".B", TWIN, "lm_head.weight"]
UNRELATED = {
    "members": [{"direction": d} for d in range(24)],
    "generations": [{"generation": g} for g in range(24)],
    "mistake 6: neighboring seeds": [{"run_seed": s} for s in (*range(-12, 12), 42)],
    "mistake 6: populations": [
        {"run_seed": s, "generation": g} for s in (0, 1, 2, 41, 42) for g in range(4)
    ],
    "swapped": [{"generation": 1, "direction": 2}, {"generation": 2, "direction": 1}],
    "mistake 3: names": [{"name": name} for name in NAMES],
}


@pytest.mark.parametrize("names", UNRELATED.values(), ids=UNRELATED)
def test_noise_of_different_names_is_uncorrelated(names):
    assert_unrelated({str(name): drawn(**name) for name in names})


def test_mistake_7_noise_does_not_depend_on_what_was_drawn_before():
    fresh = noise.draw_noise_rows(1, 5, range(4), NAME, 500)
    for generation in range(5):  # a run that comes from generation 0 rather than resuming at 5
        noise.draw_noise_rows(1, generation, range(4), NAME, 500)
        noise.epoch_permutation(1, "train", generation, 10)
    assert np.array_equal(noise.draw_noise_rows(1, 5, range(4), NAME, 500), fresh)
    assert_unrelated({g: noise.weight_noise(1, g, 0, NAME, 4000) for g in (0, 5)})
