"""What every space must do: noise by name, of unit variance, added up in a fixed order."""

import numpy as np
import pytest
import torch

from germline.config import Full, Lora, LowRank, Singular, SpaceConfig, Subspace
from germline.protocols import (
    AdapterSpace,
    Base,
    CoordinateSpace,
    DenseSpace,
    LowRankSpace,
    Space,
)
from germline.spaces import SPACES, make_space
from germline.types import Seeded, TensorInfo, Update
from tests.tiny_engines import drawn

SETTINGS: dict[str, SpaceConfig] = {
    "full": Full(),
    "rank 1": LowRank(rank=1),
    "rank 2": LowRank(rank=2),
    "rank 7": LowRank(rank=7),
    "lora": Lora(rank=64),
    "subspace": Subspace(),
    "singular": Singular(),
}
LAYER = TensorInfo("model.layers.0.self_attn.q_proj.weight", (96, 64), "linear", 0)
TWIN = TensorInfo("model.layers.1.self_attn.q_proj.weight", (96, 64), "linear", 1)


@pytest.fixture(params=SETTINGS)
def section(request):
    return SETTINGS[request.param]


@pytest.fixture
def space(section):
    return make_space(section)


def member(direction=0, sign=1, generation=0, run_seed=3, sigma=0.1):
    return Seeded(run_seed, generation, direction, sign, sigma)


def unit_noise(space, of, tensor):
    """The noise a member of any kind of space plays, before sign and sigma."""
    if isinstance(space, LowRankSpace):
        a, b = space.factors([of], tensor)
        return a[0] @ b[0].T
    if isinstance(space, AdapterSpace | CoordinateSpace):
        return space.noises([of], tensor)[0]
    return space.noise(of, tensor)


def one_hot(direction, directions=4):
    return Update(3, 0, 0.1, 1.0, tuple(float(k == direction) for k in range(directions)))


def test_every_space_of_the_table_is_tested_and_keeps_the_contract(space, section):
    assert {one.kind for one in SETTINGS.values()} == set(SPACES)
    assert isinstance(space, Space)
    kinds = (DenseSpace, LowRankSpace, AdapterSpace, CoordinateSpace)
    assert sum(isinstance(space, kind) for kind in kinds) == 1
    assert SPACES[section.kind].endswith(type(space).__name__)


def test_the_noise_is_what_its_definition_says(space, section):
    for direction in (0, 5):
        found = unit_noise(space, member(direction), LAYER).double().numpy()
        assert found.shape == LAYER.shape
        np.testing.assert_allclose(found, drawn(member(direction), LAYER, section), atol=1e-5)


def test_the_noise_has_mean_zero_and_unit_variance(space, section):
    samples = torch.stack([unit_noise(space, member(k), LAYER) for k in range(200)]).double()
    # A rank-1 product has no more independent numbers than its factors: 200 x 160 of them.
    assert abs(samples.mean()) < 0.01
    assert samples.var() == pytest.approx(1, abs=0.05)


def test_sign_and_sigma_do_not_change_the_direction(space):
    plus, minus = member(2, 1, sigma=0.1), member(2, -1, sigma=0.7)
    assert torch.equal(unit_noise(space, plus, LAYER), unit_noise(space, minus, LAYER))


@pytest.mark.parametrize(
    ("other", "tensor"),
    [
        (member(1), LAYER),
        (member(generation=1), LAYER),
        (member(run_seed=4), LAYER),
        (member(), TWIN),
    ],
    ids=["direction", "generation", "run seed", "same-shape tensor"],
)
def test_another_name_gets_unrelated_noise(space, other, tensor):
    pairs = [
        (unit_noise(space, member(k), LAYER), unit_noise(space, shifted(other, k), tensor))
        for k in range(0, 80, 2)
    ]
    left, right = (torch.stack(side).flatten().double() for side in zip(*pairs, strict=True))
    correlation = float(torch.corrcoef(torch.stack([left, right]))[0, 1])
    # 40 draws of 6144 numbers, but at rank 1 only of 160 independent ones.
    assert abs(correlation) < 0.05


def shifted(of, directions):
    return Seeded(of.run_seed, of.generation, of.direction + directions, of.sign, of.sigma)


@pytest.mark.parametrize("direction", [0, 3])
def test_the_gradient_of_one_direction_is_the_noise_its_members_played(space, direction):
    gradient = space.gradient(one_hot(direction), LAYER)
    played = unit_noise(space, member(direction), LAYER)
    assert gradient.dtype == torch.float32
    if isinstance(space, LowRankSpace) and space.rank > 1:
        # Summed column after column here, by a matrix product there.
        torch.testing.assert_close(gradient, played, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(gradient, played)


def test_the_gradient_is_the_weighted_sum_of_the_noise(space, section):
    coefficients = (0.5, -0.25, 0.0, 1.75)
    expected = sum(c * drawn(member(k), LAYER, section) for k, c in enumerate(coefficients))
    found = space.gradient(Update(3, 0, 0.1, 1.0, coefficients), LAYER).double().numpy()
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


def test_the_gradient_has_the_same_bits_for_any_thread_count(space):
    update = Update(3, 1, 0.1, 1.0, tuple(np.linspace(-1, 1, 16).tolist()))
    big = TensorInfo("model.layers.0.mlp.up_proj.weight", (512, 256), "linear", 0)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(space.gradient(update, big))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_selecting_keeps_the_order_given(space):
    if isinstance(space, AdapterSpace | CoordinateSpace):
        weights = {layer.name: torch.ones(layer.shape) for layer in (LAYER, TWIN)}
        begun = [*space.begin(Base("", (LAYER, TWIN), str, weights))][::-1]
        assert space.select((TWIN, LAYER, *begun)) == tuple(begun)
    else:
        assert space.select((TWIN, LAYER)) == (TWIN, LAYER)
