"""Spaces: which tensors are searched, in the settings' own words."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from germline import noise
from germline.config import Full, Lora, LowRank, Singular, Subspace
from germline.engines.model_tensors import list_tensors
from germline.spaces import make_space
from germline.spaces.base import BaseModel, CoordinateSpace, DenseSpace
from germline.spaces.tensor_selection import parse_layers
from germline.types import SeedPerturbation, TensorInfo, Update
from tests.refusals import refusal
from tests.tiny_engines import engine, folder, inprocess, population


@pytest.fixture(scope="module")
def tied():
    return list_tensors(inprocess("qwen2").model)


@pytest.fixture(scope="module")
def untied():
    return list_tensors(inprocess("llama").model)


def names(space, tensors):
    return [info.name for info in make_space(space).select(tensors)]


def test_a_tied_head_is_searched_once_under_the_name_of_the_embedding(tied, untied):
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(names(Full(), untied))
    found = names(Full(), tied)
    assert found == [info.name for info in tied]
    assert "model.embed_tokens.weight" in found
    assert "lm_head.weight" not in found


@pytest.mark.parametrize("family", ["tied", "untied"])
def test_low_rank_searches_the_linear_layers_of_the_blocks_and_nothing_else(family, request):
    tensors = request.getfixturevalue(family)
    sides = ["self_attn." + side for side in ("q_proj", "k_proj", "v_proj", "o_proj")]
    sides += ["mlp." + side for side in ("gate_proj", "up_proj", "down_proj")]
    expected = {f"model.layers.{layer}.{side}.weight" for layer in range(3) for side in sides}
    found = names(LowRank(), tensors)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_every_tensor_has_its_kind_and_layer(untied):
    kinds = {info.name: (info.kind, info.layer) for info in untied}
    assert kinds["model.embed_tokens.weight"] == ("embedding", None)
    assert kinds["lm_head.weight"] == ("linear", None)
    assert kinds["model.norm.weight"] == ("norm", None)
    assert kinds["model.layers.2.input_layernorm.weight"] == ("norm", 2)
    assert kinds["model.layers.1.mlp.up_proj.weight"] == ("linear", 1)
    assert kinds["model.layers.1.mlp.up_proj.bias"] == ("bias", 1)


@pytest.fixture(scope="module")
def mixture():
    return list_tensors(inprocess("mixtral").model)


@pytest.mark.parametrize(
    ("model", "shared"),
    [
        ("mixtral", set()),
        ("qwen2_moe", {"shared_expert.gate_proj", "shared_expert.down_proj", "shared_expert_gate"}),
        ("qwen3_moe", {"gate_proj", "down_proj"}),
    ],
)
def test_routers_and_experts_of_a_mixture_are_told_from_what_every_token_passes(model, shared):
    kinds: dict[str, set[str]] = {}
    for info in list_tensors(inprocess(model).model):
        if info.layer is not None and ".mlp." in info.name:
            part = info.name.split(".mlp.")[1].removesuffix(".weight")
            kinds.setdefault(info.kind, set()).add(part)
    assert kinds["expert"] == {"experts.gate_up_proj", "experts.down_proj"}
    assert kinds["router"] == {"gate"}
    assert shared <= kinds.get("linear", set())


@pytest.mark.parametrize("section", [LowRank(), Lora()])
def test_a_mixture_is_refused_with_the_setting_a_tensor_and_the_remedy(section):
    message = refusal(inprocess, "qwen3_moe", section)
    for words in (
        f"space.kind={section.kind} can perturb linear layers only",
        "model.layers.0.mlp.experts.gate_up_proj [4, 64, 64] (kind expert; 5 more)",
        "with space.unsupported=skip, or use space.kind=full",
    ):
        assert words in message


def test_unsupported_matrices_are_left_alone_by_setting_or_pattern(mixture):
    skipped = names(LowRank(unsupported="skip"), mixture)
    assert len(skipped) == 4 * 3
    assert all("self_attn" in name for name in skipped)
    assert names(LowRank(exclude=("*.mlp.*",)), mixture) == skipped


NORMS, MISSPELLED = ("*norm*",), ("model.layers.0.mlp.upproj.weight",)
HEAD = ("model.embed_tokens.weight", "lm_head.*")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (Full(include=HEAD), r"space\.include: 'lm_head\.\*' .* write model\.embed_tokens"),
        (Full(exclude=HEAD), r"space\.exclude: 'lm_head\.\*' .* write model\.embed_tokens"),
        (Full(include=MISSPELLED), r"space\.include.*'model.*upproj.*model.*\.up_proj\.weight"),
        (Full(exclude=MISSPELLED), r"space\.exclude.*'model.*upproj.*model.*\.up_proj\.weight"),
        (Full(layers="1-4"), r"space\.layers: '1-4' asks for layers \[3, 4\]; .* has layers 0-2"),
        (LowRank(include=NORMS), r"space\.include"),
        (Full(include=NORMS, exclude=NORMS), r"include=\['\*norm\*'\], exclude=\['\*norm\*'\]"),
    ],
)
def test_a_selection_that_cannot_be_searched_is_refused_by_setting(tied, section, said):
    assert re.search(said, refusal(make_space(section).select, tied), re.DOTALL)


def test_an_expert_that_is_a_linear_layer_sees_routed_rows_and_is_unsupported():
    expert = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(2, 2)])})
    model = nn.Module()
    model.layers = nn.ModuleList([expert])
    assert {info.kind for info in list_tensors(model)} == {"expert", "bias"}


def test_conv1d_is_a_linear_layer_stored_transposed():
    infos = {info.name: info for info in list_tensors(inprocess("gpt2").model)}
    fused = infos["transformer.h.1.attn.c_attn.weight"]
    assert (fused.kind, fused.layer, fused.transposed) == ("linear", 1, True)
    assert fused.shape == (64, 192)
    assert fused.out_in_features == (192, 64)
    assert infos["transformer.wte.weight"].kind == "embedding"
    assert infos["transformer.h.0.ln_1.weight"].kind == "norm"


def test_include_and_exclude_are_globs_over_whole_names(tied):
    found = names(Full(include=("*.mlp.*", "*.q_proj.*"), exclude=("*.bias", "*up_proj*")), tied)
    assert all(".mlp." in name or name.endswith("q_proj.weight") for name in found)
    assert len(found) == 3 * 3
    assert not any("up_proj" in name for name in found)


def test_layers_leave_everything_outside_them_alone(tied):
    found = make_space(Full(layers="0,2")).select(tied)
    assert {info.layer for info in found} == {0, 2}
    for text, layers in (("0-2", {0, 1, 2}), ("1", {1}), (" 0 , 1-2", {0, 1, 2})):
        assert parse_layers(text, tied) == layers
    assert len(found) == 2 * sum(info.layer == 0 for info in tied)


@pytest.mark.parametrize(
    "text", ["", "a", "0-", "-1", "0..2", "3.5", "1,,2", "0-1-2", "2-1", "0,2-1"]
)
def test_layers_of_another_form_are_refused_with_an_example(tied, text):
    message = refusal(make_space(Full(layers=text)).select, tied)
    assert message == f"space.layers: {text!r} must look like 0-9 or 0,3,20-23"


def test_dense_noise_is_the_stream_of_the_canonical_name():
    tensor = TensorInfo("model.embed_tokens.weight", (12, 5), "embedding", None)
    space = make_space(Full())
    assert isinstance(space, DenseSpace)
    found = space.noise(SeedPerturbation(7, 3, 4, -1, 0.1), tensor)
    assert (found.flatten().numpy() == noise.weight_noise(7, 3, 4, tensor.name, 60)).all()


@pytest.mark.parametrize("section", [Full(), LowRank(rank=2)])
def test_noise_and_updates_are_computed_on_the_device_that_needs_them(section):
    tensor = TensorInfo("model.layers.0.mlp.up_proj.weight", (37, 29), "linear", 0)
    update = Update(5, 2, 0.1, 1.0, (0.3, -0.2, 0.7))
    space, meta = make_space(section), torch.device("meta")
    member = SeedPerturbation(7, 3, 4, -1, 0.1)
    for far in (space.gradient(update, tensor, meta), space.noise(member, tensor, meta)):
        assert (far.device.type, tuple(far.shape)) == ("meta", tensor.shape)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_low_rank_update_has_rank_members_times_rank(rank):
    tensor = TensorInfo("model.layers.0.mlp.up_proj.weight", (40, 30), "linear", 0)
    update = Update(5, 0, 0.1, 1.0, (1.0, -0.5, 0.25))
    gradient = make_space(LowRank(rank=rank)).gradient(update, tensor)
    assert torch.linalg.matrix_rank(gradient.double(), rtol=1e-5) == 3 * rank


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
