"""Spaces of coordinates: where their directions come from, what moves, and what is written."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from germline import noise
from germline.config import Singular, Subspace
from germline.spaces import make_space
from germline.spaces.base import BaseModel, CoordinateSpace
from germline.types import TensorInfo, Update
from tests.tiny_engines import (
    engine,
    folder,
    inprocess,
    population,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
    pytest.mark.usefixtures("graded_in_process"),
]

IDS = torch.arange(30, 60).view(2, 15)
UPDATE = Update(3, 0, 0.02, 0.1, (0.5, -1.0, 0.25))
LAYER = TensorInfo("model.layers.0.mlp.up_proj.weight", (96, 64), "linear", 0)


def coordinate_space(weights):
    assert isinstance(weights.space, CoordinateSpace)
    return weights.space


def begun(section, run_seed=0, weights=None):
    space = make_space(section, run_seed)
    assert isinstance(space, CoordinateSpace)
    space.begin(BaseModel("", (LAYER,), str, weights or {}))
    return space


def plain(model):
    return AutoModelForCausalLM.from_pretrained(folder(model), dtype=torch.float32).eval()


def singular_values(weight, k):
    return torch.linalg.svdvals(weight.double())[:k]


# --- subspace


def test_directions_follow_from_run_seed_and_name_of_the_layer():
    found = begun(Subspace(dimension=5), 7).directions(LAYER)
    assert found.coordinates == "subspace.coordinates"
    for k in range(5):
        a = noise.weight_noise(7, 0, k, f"{LAYER.name}/subspace/a", 96) * np.float32(
            1 / math.sqrt(5)
        )
        b = noise.weight_noise(7, 0, k, f"{LAYER.name}/subspace/b", 64)
        assert np.array_equal(found.a[:, k].numpy(), a)
        assert np.array_equal(found.b[:, k].numpy(), b)


def test_a_smaller_subspace_lies_in_a_larger_one():
    small, large = (begun(Subspace(dimension=d), 7) for d in (4, 16))
    found, wider = small.directions(LAYER), large.directions(LAYER)
    torch.testing.assert_close(found.a, 2 * wider.a[:, :4])
    assert torch.equal(found.b, wider.b[:, :4])


@pytest.mark.parametrize("sigma_unit", ["constant", "mean_abs"])
@pytest.mark.parametrize("section", [Subspace(dimension=200), Singular(top_k=30)])
def test_sigma_is_the_change_of_a_weight(section, sigma_unit):
    weights = engine("qwen2", section, sigma_unit=sigma_unit).weights
    member = population(2, sigma=0.1).members[0]
    moved = weights.merged_tensors(member)
    ratios = []
    for layer in coordinate_space(weights).matrices:
        before = weights.tensors[layer.name]
        unit = 1.0 if sigma_unit == "constant" else float(before.abs().mean())
        ratios.append(float((moved[layer.name] - before).square().mean().sqrt()) / unit)
    assert np.mean(ratios) == pytest.approx(0.1, rel=0.1)


def test_one_coordinate_moves_every_selected_layer_and_no_other():
    weights = engine("llama", Subspace(dimension=1, layers="1", exclude=("*.mlp.*",))).weights
    weights.tensors["subspace.coordinates"].fill_(0.1)
    after = weights.merged_tensors()
    changed = {name for name, one in after.items() if not torch.equal(one, weights.tensors[name])}
    sides = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert changed == {f"model.layers.1.self_attn.{side}.weight" for side in sides}


def test_where_there_are_fewer_weights_than_coordinates_by_default_all_are_searched():
    few = TensorInfo("model.layers.0.mlp.few.weight", (3, 4), "linear", 0)
    space = make_space(Subspace(), 7)
    assert isinstance(space, CoordinateSpace)
    (coordinates,) = space.begin(BaseModel("", (few,), str))
    assert coordinates.shape == (12,)
    found = space.directions(few)
    assert found.a.shape == (3, 12)
    a = noise.weight_noise(7, 0, 0, f"{few.name}/subspace/a", 3) * np.float32(1 / math.sqrt(12))
    assert np.allclose(found.a[:, 0].numpy(), a)


# --- singular


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_offsets_are_added_to_the_largest_singular_values(model):
    weights = engine(model, Singular(top_k=3)).weights
    offsets = torch.tensor([0.5, 0.25, 0.125])
    for info in weights.searched:
        weights.tensors[info.name].copy_(offsets)
    after = weights.merged_tensors()
    for layer in coordinate_space(weights).matrices:
        before, now = (singular_values(one[layer.name], 9) for one in (weights.tensors, after))
        expected = before + torch.cat([offsets, torch.zeros(6)])
        torch.testing.assert_close(now, expected.sort(descending=True).values)


def test_all_singular_values_are_searched_where_top_k_is_open():
    weights = engine("llama", Singular(top_k=None)).weights
    sizes = {info.name: info.shape for info in weights.searched}
    assert sizes["model.layers.0.self_attn.k_proj.singular"] == (32,)
    assert sizes["model.layers.0.mlp.up_proj.singular"] == (64,)


def test_the_directions_have_the_same_bits_for_any_thread_count():
    before = torch.get_num_threads()
    values = torch.from_numpy(noise.weight_noise(0, 0, 0, "any", 96 * 64)).view(96, 64)
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(begun(Singular(), weights={LAYER.name: values}).directions(LAYER))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].a, found[1].a)
    assert torch.equal(found[0].b, found[1].b)


# --- engines


@pytest.mark.parametrize("section", [Subspace(dimension=300), Singular()])
def test_the_start_is_the_base_model_bit_for_bit(section):
    with torch.no_grad():
        expected = plain("llama")(IDS).logits
    assert torch.equal(inprocess("llama", section).logits(None, IDS), expected)


@pytest.mark.parametrize(
    ("model", "section"), [("llama", Subspace(dimension=12)), ("gpt2", Singular(top_k=4))]
)
def test_an_exported_model_gives_the_logits_of_the_engine(model, section, tmp_path):
    made = inprocess(model, section)
    made.apply(UPDATE)
    made.save_model(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").eval()
    with torch.no_grad():
        found = made.logits(None, IDS)
        torch.testing.assert_close(loaded(IDS).logits, found, atol=1e-4, rtol=1e-4)
        assert (plain(model)(IDS).logits - found).abs().max() > 0.01
