"""Masters: theta in fp32, and the digests that name it."""

import hashlib
import threading
from collections import Counter

import pytest
import torch

from germline.config import Full, Lora, LowRank, Singular, SpaceConfig, Subspace
from germline.engines import model_tensors
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import root_digest, tensor_digests
from germline.optimizers import Adam, Sgd
from germline.spaces import make_space
from germline.types import GermlineError, TensorInfo, Update
from tests.refusals import refusal
from tests.tiny_engines import inprocess

INFOS = (
    TensorInfo("model.layers.0.mlp.up_proj.weight", (6, 4), "linear", 0),
    TensorInfo("model.layers.0.mlp.up_proj.bias", (6,), "bias", 0),
    TensorInfo("model.layers.1.mlp.up_proj.weight", (6, 4), "linear", 1),
)
UPDATE = Update(1, 0, 0.1, 0.5, (0.5, -0.25))


def masters(space=None, optimizer=None, sigma_unit="constant", infos=INFOS, fill=None):
    tensors = {}
    for place, info in enumerate(infos):
        count = torch.Size(info.shape).numel()
        values = (
            torch.arange(1.0, count + 1) / 7 + place if fill is None else torch.full((count,), fill)
        )
        tensors[info.name] = values.reshape(info.shape)
    return Masters(tensors, infos, space or make_space(Full()), optimizer or Sgd(), sigma_unit)


def test_the_digest_follows_every_bit_of_every_tensor():
    clean = masters().digest()
    for name in masters().tensors:
        changed = masters()
        flat = changed.tensors[name].view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(100.0))
        assert changed.digest() != clean
    assert masters().digest() == clean
    renamed = (TensorInfo("model.layers.0.mlp.gate_proj.weight", (6, 4), "linear", 0), *INFOS[1:])
    reshaped = (TensorInfo(INFOS[0].name, (4, 6), "linear", 0), *INFOS[1:])
    digests = {masters(infos=infos).digest() for infos in (INFOS, renamed, reshaped)}
    assert len(digests) == 3


@pytest.mark.parametrize("sigma_unit", ["mean_abs", "std"])
def test_units_are_those_of_the_starting_weights_for_the_whole_run(sigma_unit):
    moved = masters(sigma_unit=sigma_unit)
    units = dict(moved.units)
    moved.apply(UPDATE)
    values = masters().tensors[INFOS[0].name].double()
    expected = values.abs().mean() if sigma_unit == "mean_abs" else values.std(correction=0)
    assert moved.units == units
    assert units[INFOS[0].name] == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("sigma_unit", "fill"), [("mean_abs", 0.0), ("std", 1.0)])
def test_a_tensor_that_could_never_move_is_refused_with_two_remedies(sigma_unit, fill):
    message = refusal(masters, sigma_unit=sigma_unit, fill=fill)
    assert f"strategy.sigma_unit={sigma_unit}" in message
    assert INFOS[0].name in message
    assert "space.exclude" in message
    assert "sigma_unit=constant" in message


def test_a_state_of_another_model_is_refused_with_what_was_found():
    moved = masters()
    state = dict(moved.state())
    with pytest.raises(GermlineError, match=r"\[6, 4\], found \[4, 6\]"):
        moved.load_state({**state, INFOS[0].name: torch.zeros(4, 6)})
    del state[INFOS[0].name]
    with pytest.raises(GermlineError, match="found nothing"):
        moved.load_state(state)


def test_a_state_is_loaded_as_a_copy():
    source, target = masters(optimizer=Adam()), masters(optimizer=Adam())
    source.apply(UPDATE)
    target.load_state(source.state())
    digest = source.digest()
    target.apply(UPDATE)
    assert source.digest() == digest
    assert target.digest() != digest


def test_the_state_holds_what_updates_change_and_nothing_else():
    moved = masters(make_space(LowRank()), Adam())
    moved.apply(UPDATE)
    searched = [info.name for info in moved.searched]
    moments = [f"{name}.{moment}" for name in searched for moment in "mv"]
    assert sorted(moved.state()) == sorted(searched + moments)
    assert len(searched) == 2


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
