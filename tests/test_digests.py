"""Digests: the formula, and how often each tensor is hashed."""

import hashlib
import threading
from collections import Counter

import pytest
import torch

from germline.config import Full, Lora, LowRank, Singular, SpaceConfig, Subspace
from germline.engines import model_tensors
from germline.engines.model_tensors import root_digest, tensor_digests
from germline.optimizers import Adam
from germline.types import Update
from tests.tiny_engines import inprocess

LAST = "model.layers.2.mlp.up_proj.weight"
SECTIONS: dict[str, SpaceConfig] = {
    "low_rank": LowRank(),
    "one layer": Full(include=(LAST,)),
    "lora": Lora(rank=2, alpha=2),
    "lora of frozen A": Lora(rank=2, alpha=2, freeze_a=True),
    "subspace": Subspace(dimension=4),
    "singular": Singular(top_k=2),
}


def in_one_go(tensors):
    """Work a digest out from its definition, from fp32 copies."""
    leaves = b""
    for name, tensor in tensors.items():
        header = f"{name}:{list(tensor.shape)}:".encode()
        leaves += hashlib.sha256(header + tensor.float().numpy().astype("<f4").tobytes()).digest()
    return hashlib.sha256(leaves).hexdigest()


def update(generation):
    return Update(1, generation, 0.1, 0.5, (0.5, -0.25))


@pytest.mark.parametrize("space", SECTIONS)
def test_a_frozen_tensor_is_hashed_once_in_a_run(space, monkeypatch):
    hashed: Counter[str] = Counter()
    leaf = model_tensors._leaf

    def counted(name, tensor):
        hashed[name] += 1
        return leaf(name, tensor)

    monkeypatch.setattr(model_tensors, "_leaf", counted)
    engine = inprocess("qwen2", SECTIONS[space], Adam())
    weights = engine.weights
    weights.digest()
    for generation in range(3):
        engine.apply(update(generation))
        weights.digest()
    searched = {info.name for info in weights.searched}
    assert searched
    assert {name: hashed[name] for name in searched} == dict.fromkeys(searched, 4)
    assert {hashed[name] for name in weights.tensors if name not in searched} == {1}


@pytest.mark.parametrize("space", SECTIONS)
def test_the_digest_is_that_of_all_tensors_and_moments_hashed_anew(space):
    engine = inprocess("qwen2", SECTIONS[space], Adam())
    weights = engine.weights
    for generation in range(3):
        moments = dict(sorted(weights.optimizer.state.items()))
        assert weights.digest() == in_one_go({**weights.tensors, **moments})
        engine.apply(update(generation))
        engine.apply(update(generation))
    assert weights.digest() == in_one_go(weights.tensors | moments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_tensor_in_half_precision_has_the_leaf_of_its_fp32_values(dtype, monkeypatch):
    monkeypatch.setattr(model_tensors, "CHUNK", 7)
    tensor = torch.linspace(-3, 3, 40).reshape(5, 8).to(dtype)
    assert tensor_digests({"w": tensor}) == tensor_digests({"w": tensor.float()})
    assert root_digest(tensor_digests({"w": tensor}).values()) == in_one_go({"w": tensor})


@pytest.mark.parametrize("numbers", [40, model_tensors.FEW // 2 + 1])
def test_threads_hash_many_numbers_and_none_starts_for_few(numbers, monkeypatch):
    hashed_in = set()
    leaf = model_tensors._leaf

    def watched(name, tensor):
        hashed_in.add(threading.current_thread())
        return leaf(name, tensor)

    monkeypatch.setattr(model_tensors, "_leaf", watched)
    tensors = {name: torch.linspace(-3, 3, numbers) for name in ("a", "b")}
    assert root_digest(tensor_digests(tensors).values()) == in_one_go(tensors)
    assert (threading.current_thread() in hashed_in) == (2 * numbers <= model_tensors.FEW)
