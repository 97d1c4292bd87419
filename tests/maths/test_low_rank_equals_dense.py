"""Low-rank members and updates are those of dense matrices A B^T / sqrt(rank)."""

import numpy as np
import pytest
import torch

from germline import noise
from germline.config import LowRank
from germline.types import SeedPerturbation, Update
from tests import merged_models
from tests.tiny_engines import examples, folder, inprocess

COEFFICIENTS = (0.5, -0.25, 0.125)


def dense(direction, info, rank):
    """Draw A B^T / sqrt(rank) from the noise alone, in fp64."""
    a, b = (
        noise.weight_noise(3, 0, direction, f"{info.name}/{side}", size * rank).reshape(size, rank)
        for side, size in zip("ab", info.shape, strict=True)
    )
    return a.astype(np.float64) @ b.astype(np.float64).T / np.sqrt(rank)


@pytest.mark.parametrize("rank", [1, 2, 6])
def test_an_update_is_the_weighted_sum_of_dense_matrices(rank):
    weights = inprocess("llama", LowRank(rank=rank)).weights
    before = {name: tensor.double().numpy() for name, tensor in weights.tensors.items()}
    weights.apply(Update(3, 0, 0.02, 0.5, COEFFICIENTS))
    for info in weights.searched:
        step = sum(c * dense(k, info, rank) for k, c in enumerate(COEFFICIENTS))
        expected = before[info.name] + 0.5 * weights.units[info.name] * step
        np.testing.assert_allclose(weights.tensors[info.name].numpy(), expected, rtol=0, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("sign", [1, -1])
def test_the_logits_of_a_member_are_those_of_a_model_with_the_dense_matrix_merged(sign):
    engine = inprocess("llama", LowRank(rank=2))
    member = SeedPerturbation(3, 0, 1, sign, 0.05)
    ids = torch.tensor([engine.encoder.encode(examples()[0])])
    plain = merged_models.merged(
        folder("llama"), LowRank(rank=2), engine.weights, member, torch.float32
    )
    assert (engine.logits(member, ids) - plain(ids).logits).abs().max() < 1e-4
