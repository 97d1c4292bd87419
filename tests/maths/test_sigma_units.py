"""Units of sigma: what `rms` makes of weights, biases and adapters."""

import math

import numpy as np
import pytest
import torch

from germline.config import Full, Lora, LowRank
from germline.engines.master_weights import Masters
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.spaces.sigma_units import measure_unit
from germline.types import TensorInfo


def units(space, factor=1.0):
    """Return the units `rms` beside one linear layer with a bias of zeros, times a factor."""
    weight = factor * torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4))).float()
    infos = (
        TensorInfo("layers.0.q.weight", (6, 4), "linear", 0),
        TensorInfo("layers.0.q.bias", (6,), "bias", 0),
    )
    tensors = {infos[0].name: weight, infos[1].name: torch.zeros(6)}
    return Masters(tensors, infos, make_space(space, 0), Sgd(), "rms").units


@pytest.mark.parametrize("space", [Full(), LowRank()], ids=["full", "low rank"])
def test_the_unit_of_a_weight_follows_its_size(space):
    once, thrice = units(space), units(space, 3.0)
    for name, unit in once.items():
        assert thrice[name] == pytest.approx(3 * unit, rel=1e-6)


def test_a_bias_of_zeros_has_the_unit_of_its_weight():
    found = units(Full())
    assert found["layers.0.q.bias"] == found["layers.0.q.weight"] > 0


def test_noise_of_an_adapter_moves_its_layer_by_a_share_of_it():
    space = Lora(rank=2, alpha=6)
    once, thrice = units(space), units(space, 3.0)
    a, b = once
    assert thrice[a] == once[a]
    assert thrice[b] == pytest.approx(3 * once[b], rel=1e-6)
    # scale * B A of noise in B has the root mean square of W.
    weight = units(LowRank())["layers.0.q.weight"]
    assert (6 / 2) * math.sqrt(2) * once[b] * once[a] == pytest.approx(weight, rel=1e-6)


def test_a_unit_that_does_not_exist_is_no_silent_standard_deviation():
    with pytest.raises(KeyError, match="auto"):
        measure_unit("auto", "w", torch.ones(2))
