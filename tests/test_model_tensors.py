"""Where tensors live: fp32 masters for what is searched, and no fp32 copy of what is frozen."""

from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.memory import LiveTensors
from germline.config import Full, Lora, LowRank, Singular, SpaceConfig, Subspace
from germline.engines.checkpoint_files import stored_dtype
from germline.engines.model_tensors import place_tensors, root_digest, tensor_digests
from germline.engines.pretrained import load_pretrained
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.types import Update
from tests.tiny_engines import folder, inprocess

CPU = torch.device("cpu")
LAST = "model.layers.2.mlp.up_proj.weight"
SECTIONS: dict[str, SpaceConfig] = {
    "low_rank": LowRank(layers="1"),
    "full": Full(include=(LAST,)),
    "lora": Lora(rank=2, alpha=2),
    "subspace": Subspace(dimension=4),
    "singular": Singular(top_k=2),
}
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> dict[str, Path]:
    """The same random model in three dtypes: Gemma, whose embeddings are scaled by a buffer."""
    kept = {"float32": folder("gemma3")}
    for name, dtype in HALF.items():
        kept[name] = tmp_path_factory.mktemp(name)
        source = AutoModelForCausalLM.from_pretrained(folder("gemma3"), dtype=dtype)
        source.save_pretrained(kept[name])
        load_pretrained(str(folder("gemma3"))).tokenizer.save_pretrained(kept[name])
    return kept


def upcast(source: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_is_loaded_in_the_dtype_of_its_files_with_buffers_in_fp32(stored, dtype):
    model = load_pretrained(str(stored[dtype])).model
    plain = AutoModelForCausalLM.from_pretrained(stored[dtype], dtype=torch.float32)
    wanted = HALF.get(dtype, torch.float32)
    assert stored_dtype(str(stored[dtype])) == wanted
    assert {parameter.dtype for parameter in model.parameters()} == {wanted}
    for name, parameter in plain.named_parameters():
        assert torch.equal(model.get_parameter(name).float(), parameter)
    for name, buffer in plain.named_buffers():
        assert model.get_buffer(name).dtype == buffer.dtype
        assert torch.equal(model.get_buffer(name), buffer)


def test_files_of_several_dtypes_are_loaded_in_fp32(stored, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(stored["bfloat16"], dtype=torch.bfloat16)
    model.model.norm.float()
    model.save_pretrained(tmp_path)
    assert stored_dtype(str(tmp_path)) == torch.float32


@pytest.mark.parametrize("space", SECTIONS)
@pytest.mark.parametrize("serving", ["float32", "bfloat16"])
def test_nothing_frozen_has_an_fp32_copy(stored, serving, space):
    engine = inprocess(str(stored["bfloat16"]), SECTIONS[space], dtype=serving)
    weights = engine.weights
    searched = {info.name for info in weights.searched}
    for name, served in engine.serving.items():
        kept = weights.tensors[name]
        if name in searched:
            assert kept.dtype == torch.float32
        else:
            assert kept.dtype == served.dtype
            assert kept.data_ptr() == served.data_ptr()


@pytest.mark.parametrize(
    ("files", "serving", "space"),
    [
        *product(("float32", "bfloat16", "float16"), ("float32", "bfloat16"), ["low_rank"]),
        *(("bfloat16", "bfloat16", space) for space in SECTIONS if space != "low_rank"),
    ],
)
def test_digests_and_exports_are_those_of_fp32_values(stored, files, serving, space):
    engine = inprocess(str(stored[files]), SECTIONS[space], dtype=serving)
    weights, base = engine.weights, upcast(stored[files])
    assert weights.base.digest() == root_digest(tensor_digests(base).values())
    wide = inprocess(str(stored[files]), SECTIONS[space], dtype="float32")
    for one in (engine, wide):
        one.apply(Update(1, 0, 0.1, 0.5, (0.5, -0.25)))
    assert weights.digest() == wide.weights.digest()
    exports = [one.weights.merged_tensors() for one in (engine, wide)]
    assert all(torch.equal(exports[0][name].float(), exports[1][name]) for name in base)


@pytest.mark.parametrize("serving", [torch.float32, torch.bfloat16])
def test_placing_a_model_holds_one_tensor_more_than_the_final_state(stored, serving):
    model = load_pretrained(str(stored["bfloat16"])).model
    sizes = [parameter.numel() for parameter in model.parameters()]
    with LiveTensors() as live:
        place_tensors(model, frozenset(), CPU, serving, CPU)
    # The counter sees a tensor when it is first used, so files that are still to be read are not
    # in its peak: what is, are the serving copies and the one that is being converted.
    assert live.peak <= sum(sizes) * serving.itemsize + max(sizes) * (2 + 4)


def test_masters_of_a_served_engine_are_fp32_only_where_they_are_searched(stored):
    from germline.engines.served_engine import make_masters

    pretrained = load_pretrained(str(stored["bfloat16"]))
    weights = make_masters(pretrained, make_space(Full(include=(LAST,))), Sgd(), "constant")
    dtypes = {name: tensor.dtype for name, tensor in weights.tensors.items()}
    assert dtypes.pop(LAST) == torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    assert pretrained.model.get_parameter(LAST).data_ptr() == weights.tensors[LAST].data_ptr()
    assert weights.digest() == root_digest(tensor_digests(upcast(stored["bfloat16"])).values())
