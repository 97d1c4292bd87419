"""Spaces: which tensors are searched, in the settings' own words."""

import numpy as np
import pytest
import torch
from torch import nn

from germline import noise
from germline.config import Full, InProcess, Lora, LowRank
from germline.engines.inprocess import InProcessEngine
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import load_pretrained
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.spaces.base import BaseSpace, DenseSpace
from germline.spaces.low_rank import LowRank as LowRankSpace
from germline.spaces.tensor_selection import parse_layers
from germline.tensor_noise import cpu_noise
from germline.types import GermlineError, SeedPerturbation, SigmaUpdate, TensorInfo, Update
from tests.tiny_engines import folder, inprocess, population


@pytest.fixture(scope="module")
def tied():
    return list_tensors(inprocess("qwen2").model)


@pytest.fixture(scope="module")
def untied():
    return list_tensors(inprocess("llama").model)


def names(space, tensors):
    return [info.name for info in make_space(space).select(tensors)]


def refusal(space, tensors):
    with pytest.raises(GermlineError) as caught:
        make_space(space).select(tensors)
    return str(caught.value)


def test_a_tied_head_is_searched_once_under_the_name_of_the_embedding(tied, untied):
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(names(Full(), untied))
    found = names(Full(), tied)
    assert found == [info.name for info in tied]
    assert "model.embed_tokens.weight" in found
    assert "lm_head.weight" not in found


@pytest.mark.parametrize("setting", ["include", "exclude"])
def test_a_tied_head_selected_beside_its_embedding_is_refused_with_the_one_name(tied, setting):
    message = refusal(Full(**{setting: ("model.embed_tokens.weight", "lm_head.*")}), tied)
    assert f"space.{setting}: 'lm_head.*' is lm_head.weight, which this model ties to" in message
    assert message.endswith("write model.embed_tokens.weight")


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
    with pytest.raises(GermlineError) as caught:
        inprocess("qwen3_moe", section)
    message = str(caught.value)
    for words in (
        f"space.kind={section.kind} can perturb linear layers only",
        "model.layers.0.mlp.experts.gate_up_proj [4, 64, 64] (kind expert; 5 more)",
        "with space.unsupported=skip, or use space.kind=full",
    ):
        assert words in message


@pytest.mark.parametrize("section", [LowRank(rank=2), Lora(rank=2)])
def test_a_layer_too_thin_for_a_rank_is_refused_with_the_pattern_that_leaves_it_out(section):
    section = section.model_copy(update={"unsupported": "skip"})
    with pytest.raises(GermlineError) as caught:
        inprocess("qwen2_moe", section)
    message = str(caught.value)
    assert "space.rank=2 is above the smaller side of model.layers.0.mlp.shared_expert" in message
    pattern = "*.shared_expert_gate.weight"
    assert f"use at most 1, or exclude it (space.exclude=['{pattern}'])" in message
    remedied = section.model_copy(update={"exclude": (pattern,)})
    assert inprocess("qwen2_moe", remedied).weights.searched


def test_unsupported_matrices_are_left_alone_by_setting_or_pattern(mixture):
    skipped = names(LowRank(unsupported="skip"), mixture)
    assert len(skipped) == 4 * 3
    assert all("self_attn" in name for name in skipped)
    assert names(LowRank(exclude=("*.mlp.*",)), mixture) == skipped


def test_patterns_that_select_unsupported_matrices_alone_are_refused(mixture):
    message = refusal(LowRank(include=("*.experts.*",), unsupported="skip"), mixture)
    assert "experts" in message
    assert "space.kind=full" in message


def test_an_expert_that_is_a_linear_layer_sees_routed_rows_and_is_unsupported():
    expert = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(2, 2)])})
    model = nn.Module()
    model.layers = nn.ModuleList([expert])
    assert {info.kind for info in list_tensors(model)} == {"expert", "bias"}


def test_a_model_without_linear_layers_in_blocks_is_refused(tied):
    outside = [info for info in tied if info.layer is None]
    assert "space.kind=full" in refusal(LowRank(), outside)


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
    assert len(found) == 2 * sum(info.layer == 0 for info in tied)


@pytest.mark.parametrize(
    ("text", "layers"), [("0-2", {0, 1, 2}), ("1", {1}), ("0,2", {0, 2}), (" 0 , 1-2", {0, 1, 2})]
)
def test_layers_are_read_as_ranges_and_lists(tied, text, layers):
    assert parse_layers(text, tied) == layers


@pytest.mark.parametrize(
    "text", ["", "a", "0-", "-1", "0..2", "3.5", "1,,2", "0-1-2", "2-1", "0,2-1"]
)
def test_layers_of_another_form_are_refused_with_an_example(tied, text):
    message = refusal(Full(layers=text), tied)
    assert message == f"space.layers: {text!r} must look like 0-9 or 0,3,20-23"


def test_layers_the_model_does_not_have_are_refused_with_those_it_has(tied):
    message = refusal(Full(layers="1-4"), tied)
    assert "space.layers: '1-4' asks for layers [3, 4]; the model has layers 0-2" in message


@pytest.mark.parametrize("setting", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_is_refused_with_near_names(tied, setting):
    message = refusal(Full(**{setting: ("model.layers.0.mlp.upproj.weight",)}), tied)
    assert f"space.{setting}" in message
    assert "'model.layers.0.mlp.upproj.weight'" in message
    assert "model.layers.0.mlp.up_proj.weight" in message


def test_settings_that_leave_nothing_are_refused_together(tied):
    assert "space.include" in refusal(LowRank(include=("*norm*",)), tied)
    message = refusal(Full(include=("*norm*",), exclude=("*norm*",)), tied)
    assert "include=['*norm*'], exclude=['*norm*']" in message


def test_a_rank_above_a_matrix_is_refused_with_the_largest_that_fits(tied):
    message = refusal(LowRank(rank=33), tied)
    assert "space.rank=33" in message
    assert "k_proj.weight [32, 64]" in message
    assert "at most 32" in message
    assert len(names(LowRank(rank=32), tied)) == 21


def test_a_gradient_in_pieces_has_the_bits_of_one_in_a_piece(monkeypatch):
    tensor = TensorInfo("model.layers.0.mlp.up_proj.weight", (37, 29), "linear", 0)
    update = Update(5, 2, 0.1, 1.0, (0.3, -0.2, 0.7))
    whole = make_space(Full()).gradient(update, tensor)
    for piece in (1000, 64, 17):
        monkeypatch.setattr(cpu_noise, "PIECE", piece)
        assert torch.equal(make_space(Full()).gradient(update, tensor), whole)


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


def test_members_of_a_cell_draw_the_factors_they_draw_alone():
    tensor = TensorInfo("model.layers.0.mlp.up_proj.weight", (40, 30), "linear", 0)
    space = make_space(LowRank(rank=3))
    assert isinstance(space, LowRankSpace)
    members = [SeedPerturbation(1, 2, direction, 1, 0.1) for direction in (4, 0, 4, 9)]
    together = space.factors(members, tensor)
    for place, member in enumerate(members):
        alone = space.factors([member], tensor)
        for side in range(2):
            assert torch.equal(together[side][place], alone[side][0])


LAYERS = [
    TensorInfo(f"model.layers.0.mlp.{name}_proj.weight", shape, "linear", 0)
    for name, shape in (("gate", (40, 30)), ("up", (40, 30)), ("down", (30, 40)))
]


@pytest.mark.parametrize("rank", [1, 3])
def test_sides_drawn_together_are_the_factors_of_each_tensor(rank):
    space = make_space(LowRank(rank=rank))
    assert isinstance(space, LowRankSpace)
    members = [SeedPerturbation(1, 2, direction, 1, 0.1) for direction in (4, 0, 9)]
    wanted = [(LAYERS[2], 1), (LAYERS[0], 0), (LAYERS[1], 1)]
    alone = [space.factors(members, tensor)[side].flatten(1) for tensor, side in wanted]
    assert torch.equal(space.sides(members, wanted), torch.cat(alone, dim=1))


def test_noise_of_many_tensors_is_the_noise_of_each():
    space = make_space(Full())
    assert isinstance(space, DenseSpace)
    members = [SeedPerturbation(1, 2, direction, 1, 0.1) for direction in (4, 0, 9)]
    together = space.noises_of(members, LAYERS)
    assert list(together) == [tensor.name for tensor in LAYERS]
    for tensor in LAYERS:
        alone = [space.noise(member, tensor) for member in members]
        assert torch.equal(together[tensor.name], torch.stack(alone))


class Signs(BaseSpace):
    """Noise of +1 and -1: a space of family `dense` that the engines do not know."""

    def select(self, tensors):
        return tuple(tensor for tensor in tensors if tensor.name.endswith("q_proj.weight"))

    def noise(self, member, tensor, device=None):
        where = (member.run_seed, member.generation, member.direction, tensor.name)
        drawn = noise.weight_noise(*where, int(np.prod(tensor.shape)))
        return torch.from_numpy(np.sign(drawn)).view(tensor.shape)

    def gradient(self, update, tensor, device=None):
        coefficients = enumerate(update.coefficients)
        return sum(
            coefficient * self.noise(SeedPerturbation(3, update.generation, k, 1, 1.0), tensor)
            for k, coefficient in coefficients
        )


@pytest.mark.parametrize("together", [1, 4])
@torch.inference_mode()
def test_a_new_space_of_a_family_needs_no_change_of_the_engine(together, tmp_path):
    section = InProcess(device="cpu", dtype="float32", threads=1, members_per_batch=together)
    source = str(folder("qwen2"))
    engine = InProcessEngine(load_pretrained(source), Signs(), Sgd(), section, "mean_abs")
    plain, ids = load_pretrained(source).model, torch.arange(30, 60).view(2, 15)
    before = {name: tensor.clone() for name, tensor in engine.weights.tensors.items()}
    for member in [*population(4, sigma=0.5).members, None]:
        plain.load_state_dict(engine.weights.merged_tensors(member), strict=False)
        torch.testing.assert_close(engine.logits(member, ids), plain(ids).logits)
    sigma_update = SigmaUpdate((0.5, -1.0), 0.1, 10.0)
    engine.apply(Update(3, 0, 0.02, 0.25, (1.0, -0.5), sigma_update=sigma_update))
    assert set(engine.weights.scales().values()) == {1.0}  # the mean square of signs is 1
    for info in engine.weights.searched:
        change = engine.weights.tensors[info.name] - before[info.name]
        sizes = change.abs().flatten() / (0.25 * engine.weights.units[info.name])
        assert all(min(abs(one - 0.5), abs(one - 1.5)) < 1e-3 for one in sizes.tolist())
    with pytest.raises(GermlineError, match="Signs has no adapter to write"):
        engine.save_adapter(tmp_path)
