"""Spaces of coordinates: where their directions come from, what moves, and what is written."""

import json
import math

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from germline import noise
from germline.config import Lora, Singular, Subspace
from germline.run import export, train
from germline.spaces import make_space
from germline.spaces.base import BaseModel, CoordinateSpace
from germline.types import GermlineError, TensorInfo, Update
from tests.tiny_engines import (
    bits,
    engine,
    folder,
    inprocess,
    population,
)
from tests.toy_runs import settings

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
    pytest.mark.usefixtures("graded_in_process"),
]

IDS = torch.arange(30, 60).view(2, 15)
UPDATE = Update(3, 0, 0.02, 0.1, (0.5, -1.0, 0.25))
LAYER = TensorInfo("model.layers.0.mlp.up_proj.weight", (96, 64), "linear", 0)


def refusal(call, *arguments, **settings):
    with pytest.raises(GermlineError) as caught:
        call(*arguments, **settings)
    return str(caught.value)


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


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A trained-like adapter of rank 4 on two kinds of layers of the llama."""
    path = tmp_path_factory.mktemp("adapters") / "adapter"
    section = Lora(rank=4, alpha=6, init_scale_b=0.3, include=("*.q_proj.*", "*.down_proj.*"))
    inprocess("llama", section).save_adapter(path)
    return path


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


# --- singular values of an adapter's factors


def test_the_factors_of_a_given_adapter_are_searched_and_nothing_else(adapter):
    made = inprocess("llama", Singular(init_adapter=str(adapter), top_k=2))
    before = bits(made)
    made.apply(UPDATE)
    moved = {name for name, one in bits(made).items() if not torch.equal(one, before[name])}
    modules = [
        f"model.layers.{n}.{m}" for n in range(3) for m in ("self_attn.q_proj", "mlp.down_proj")
    ]
    assert moved == {f"{module}.lora_{side}.singular" for module in modules for side in "AB"}
    assert moved == set(made.weights.state())


def test_the_default_top_k_is_the_rank_of_a_smaller_adapter(adapter):
    by_default, in_full = (
        inprocess("llama", Singular(init_adapter=str(adapter), **chosen)).weights
        for chosen in ({}, {"top_k": None})
    )
    sizes = {info.name: info.shape for info in by_default.searched}
    assert set(sizes.values()) == {(4,)}
    assert sizes == {info.name: info.shape for info in in_full.searched}


def test_a_run_on_an_adapter_starts_as_the_adapter(adapter):
    made = inprocess("llama", Singular(init_adapter=str(adapter), top_k=2))
    lora = inprocess("llama", Lora(rank=4, alpha=6, init_adapter=str(adapter)))
    torch.testing.assert_close(made.logits(None, IDS), lora.logits(None, IDS))


def test_offsets_of_an_adapter_are_added_to_the_singular_values_of_its_factors(adapter, tmp_path):
    made = inprocess("llama", Singular(init_adapter=str(adapter), top_k=2, layers="0"))
    offsets = torch.tensor([0.5, 0.25])
    for info in made.weights.searched:
        made.weights.tensors[info.name].copy_(offsets)
    made.save_adapter(tmp_path / "after")
    again = inprocess("llama", Lora(rank=4, alpha=6, init_adapter=str(tmp_path / "after"))).weights
    for layer in again.adapted:
        for name in layer.adapter_names:
            before, now = (singular_values(one.tensors[name], 4) for one in (made.weights, again))
            added = torch.cat([offsets, torch.zeros(2)]) * (layer.layer == 0)
            torch.testing.assert_close(now, (before + added).sort(descending=True).values)


def test_members_on_an_adapter_equal_their_merged_models(adapter):
    section = Singular(init_adapter=str(adapter), top_k=3)
    made = inprocess("llama", section)
    for member in [*population(4, sigma=0.1).members, None]:
        model = plain("llama")
        model.load_state_dict(made.weights.merged_tensors(member), strict=False)
        with torch.no_grad():
            torch.testing.assert_close(
                made.logits(member, IDS), model(IDS).logits, atol=1e-4, rtol=1e-4
            )


def test_plain_peft_gives_the_logits_of_the_engine(adapter, tmp_path):
    made = inprocess("llama", Singular(init_adapter=str(adapter), top_k=3))
    made.apply(UPDATE)
    made.save_adapter(tmp_path / "after")
    loaded = PeftModel.from_pretrained(plain("llama"), tmp_path / "after").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, made.logits(None, IDS), atol=1e-4, rtol=1e-4)
    settings = json.loads((tmp_path / "after" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 6)


def test_a_factor_of_zeros_is_refused(tmp_path):
    inprocess("llama", Lora(rank=2, init_scale_b=0)).save_adapter(tmp_path / "untrained")
    message = refusal(
        inprocess, "llama", Singular(init_adapter=str(tmp_path / "untrained"), top_k=2)
    )
    assert "lora_B.weight is all zeros" in message
    assert "start from an adapter that was trained" in message


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            Subspace(dimension=2049, include=("*.0.self_attn.k_proj.*",)),
            "space.dimension=2049 is above the 2048 weights",
        ),
        (
            Singular(top_k=33),
            "space.top_k=33 is above the smaller side of model.layers.0.self_attn.k_proj.weight "
            "[32, 64]: use at most 32, or top_k=null",
        ),
        (Singular(init_adapter="adapter", top_k=8), "use at most 4, or top_k=null"),
        (
            Singular(init_adapter="adapter", include=("*.up_proj.*",)),
            "has no factors for the layers",
        ),
    ],
)
def test_coordinates_that_do_not_exist_are_refused(section, message, adapter, monkeypatch):
    monkeypatch.chdir(adapter.parent)
    assert message in refusal(inprocess, "llama", section)


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


# --- runs


def test_a_run_on_an_adapter_is_exported_as_one(adapter, tmp_path):
    space = f"space={{kind: singular, init_adapter: {adapter}, top_k: 2}}"
    model = f"model={folder('llama')}"
    config = settings("generations=1", "engine=inprocess", model, space)
    for _ in train(config, tmp_path / "run"):
        pass
    export(tmp_path / "run", tmp_path / "out")
    assert (tmp_path / "out" / "adapter_config.json").exists()
    export(tmp_path / "run", tmp_path / "merged", "merged")
    assert (tmp_path / "merged" / "model.safetensors").exists()
