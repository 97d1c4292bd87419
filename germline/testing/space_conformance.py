"""Conformance tests of spaces: inherit the class, and override how the space is made."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from germline.spaces.base import BaseSpace, CoordinateSpace
from germline.spaces.lora import Lora
from germline.spaces.low_rank import LowRank
from germline.types import SeedPerturbation, TensorInfo, Update

LAYER = TensorInfo("model.layers.0.self_attn.q_proj.weight", (96, 64), "linear", 0)
TWIN = TensorInfo("model.layers.1.self_attn.q_proj.weight", (96, 64), "linear", 1)
LARGE = TensorInfo("model.layers.0.mlp.up_proj.weight", (512, 256), "linear", 0)

FAMILIES: Mapping[str, type] = {
    "dense": BaseSpace,
    "low_rank": LowRank,
    "adapter": Lora,
    "coordinates": CoordinateSpace,
}
"""The families that engines can evaluate, and the class that a space of each derives from."""


def member_of_direction(
    index: int, sign: int = 1, generation: int = 0, run_seed: int = 3, sigma: float = 0.1
) -> SeedPerturbation:
    """Make a member of a direction."""
    return SeedPerturbation(run_seed, generation, index, sign, sigma)


class SpaceConformance:
    """Tests of the contract of a space, which pytest collects in a subclass.

    class TestMine(SpaceConformance):
        def make(self):
            return Mine()
    """

    def make(self) -> BaseSpace:
        """Return a new space; override this."""
        raise NotImplementedError

    def test_it_keeps_the_contract(self) -> None:
        space = self.make()
        assert isinstance(space, BaseSpace)
        assert isinstance(space, FAMILIES[space.family])

    def test_the_noise_has_mean_zero_and_unit_variance(self) -> None:
        space = self.make()
        drawn = torch.stack(
            [space.noise(member_of_direction(k), LAYER) for k in range(200)]
        ).double()
        # A rank-1 product has no more independent numbers than its factors: 200 x 160 of them.
        assert abs(float(drawn.mean())) < 0.01
        assert abs(float(drawn.var()) - 1) < 0.05

    def test_sign_and_sigma_do_not_change_the_direction(self) -> None:
        space = self.make()
        plus, minus = member_of_direction(2, 1, sigma=0.1), member_of_direction(2, -1, sigma=0.7)
        assert torch.equal(space.noise(plus, LAYER), space.noise(minus, LAYER))

    def test_another_name_gets_unrelated_noise(self) -> None:
        space = self.make()
        here = _noises(space, [member_of_direction(k) for k in range(0, 80, 2)])
        members = range(1, 81, 2)
        others = {
            "direction": _noises(space, [member_of_direction(k) for k in members]),
            "generation": _noises(
                space, [member_of_direction(k - 1, generation=1) for k in members]
            ),
            "run seed": _noises(space, [member_of_direction(k - 1, run_seed=4) for k in members]),
            "tensor": _noises(space, [member_of_direction(k - 1) for k in members], TWIN),
        }
        for name, other in others.items():
            correlation = float(torch.corrcoef(torch.stack([here, other]))[0, 1])
            # 40 draws of 6144 numbers, but at rank 1 only of 160 independent ones.
            assert abs(correlation) < 0.05, name

    def test_the_gradient_of_one_direction_is_the_noise_of_its_members(self) -> None:
        space = self.make()
        for index in (0, 3):
            hot = tuple(float(k == index) for k in range(4))
            gradient = space.gradient(Update(3, 0, 0.1, 1.0, hot), LAYER)
            noise = space.noise(member_of_direction(index), LAYER)
            assert gradient.dtype == torch.float32
            if space.direction_rank is not None and space.direction_rank > 1:
                torch.testing.assert_close(gradient, noise, rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(gradient, noise)

    def test_a_written_member_is_the_center_plus_its_noise(self) -> None:
        # The order: fp32 multiply, then add, then one rounding to the serving dtype.
        space = self.make()
        center = torch.linspace(-1, 1, math.prod(LAYER.shape)).view(LAYER.shape)
        for dtype in (torch.float32, torch.bfloat16):
            written = torch.empty(LAYER.shape, dtype=dtype)
            space.write_perturbed(member_of_direction(2, -1), LAYER, -0.1, center, written)
            member = space.noise(member_of_direction(2), LAYER) * -0.1 + center
            assert torch.equal(written, member.to(dtype))

    def test_the_gradient_is_the_weighted_sum_of_the_noise(self) -> None:
        space, coefficients = self.make(), (0.5, -0.25, 0.0, 1.75)
        gradient = space.gradient(Update(3, 0, 0.1, 1.0, coefficients), LAYER).double()
        expected = torch.zeros(LAYER.shape, dtype=torch.float64)
        for k, coefficient in enumerate(coefficients):
            expected += coefficient * space.noise(member_of_direction(k), LAYER).double()
        assert torch.linalg.norm(gradient - expected) <= 1e-6 * torch.linalg.norm(expected)

    def test_the_gradient_has_the_same_bits_for_any_thread_count(self) -> None:
        space, before = self.make(), torch.get_num_threads()
        update = Update(3, 1, 0.1, 1.0, tuple(np.linspace(-1, 1, 16).tolist()))
        gradients = []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                gradients.append(space.gradient(update, LARGE))
        finally:
            torch.set_num_threads(before)
        assert torch.equal(*gradients)


def _noises(
    space: BaseSpace, members: Sequence[SeedPerturbation], tensor: TensorInfo = LAYER
) -> Tensor:
    return torch.stack([space.noise(member, tensor) for member in members]).flatten().double()
