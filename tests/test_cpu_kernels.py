"""Fused parts: the numbers of the library, in modules that are known and trusted."""

from collections import Counter

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import germline.engines.decode
from germline.engines import cpu_kernels
from germline.engines.cpu_kernels import FusedDecoder
from germline.nano import NANO_DIR
from germline.types import Decoding
from tests.tiny import randomize, tiny_config
from tests.tiny_engines import MODELS, SPACES, examples, inprocess, population, tokens

GREEDY = Decoding(max_new_tokens=12)
PARTS = {"_Norm": 7, "_Attention": 3}
"""In three layers of a family whose parts are all known."""


def parts(model):
    return Counter(type(part).__name__ for part in FusedDecoder(model)._parts)


def logits(model):
    """Read ten tokens of three texts, then one more behind a mask that hides padding."""
    ids = torch.arange(33).view(3, 11) * 7 % 300
    hidden = torch.zeros(3, 1, 11, 11)
    hidden.masked_fill_(torch.ones(11, 11, dtype=torch.bool).triu(1), torch.finfo().min)
    hidden[1, :, 1:, :1] = torch.finfo().min
    with torch.inference_mode():
        return model(ids, attention_mask=hidden).logits


@pytest.mark.parametrize("model", MODELS)
def test_fused_parts_give_the_logits_of_the_library(model):
    served = inprocess(model).model
    plain = logits(served)
    with FusedDecoder(served).applied():
        ours = logits(served)
    assert float((ours - plain).abs().max()) < 1e-5 * float(plain.abs().max())


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("llama", PARTS),
        ("mistral", PARTS),
        ("gemma3", {"_Attention": 3}),  # it adds 1 to the weights of its norms
        ("gpt2", {}),
    ],
)
def test_what_a_family_does_differently_keeps_its_own_forward(model, known):
    assert parts(inprocess(model).model) == known


@pytest.mark.parametrize(
    ("family", "bound"), [("gemma2", {"attn_logit_softcapping": 50.0}), ("olmo", {"clip_qkv": 8.0})]
)
def test_attention_with_a_bound_that_small_numbers_do_not_reach_is_left_alone(family, bound):
    model = AutoModelForCausalLM.from_config(tiny_config(family, **bound)).eval()
    randomize(model)
    fused = FusedDecoder(model)
    for one in model.model.layers:
        one.self_attn.k_proj.weight.data *= 30
    plain = logits(model)
    with fused.applied():
        assert torch.allclose(logits(model), plain, atol=1e-3)


def test_a_module_that_only_looks_like_a_known_one_is_not_trusted():
    served = inprocess("llama").model
    served.model.layers[2].self_attn.o_proj = nn.Sequential(nn.Linear(64, 64), nn.Dropout())
    served.model.layers[2].self_attn.head_dim = 5
    served.model.layers[1].input_layernorm = nn.RMSNorm(64)  # whose eps is None
    assert parts(served) == {"_Norm": 6, "_Attention": 2}


def test_other_floats_than_fp32_are_left_to_the_library():
    assert parts(inprocess("llama", dtype="bfloat16").model) == {}


def test_greedy_texts_of_the_nano_model_are_those_of_the_library():
    questions = examples([f"What is {i} + {3 * i}?" for i in range(20)], chat=True)
    engine = inprocess(str(NANO_DIR))
    ours = engine.generate([None], questions, Decoding(max_new_tokens=16))
    engine._fused._parts.clear()
    assert ours == engine.generate([None], questions, Decoding(max_new_tokens=16))


def test_a_part_gives_way_to_members_that_stand_in_its_module():
    engine = inprocess("llama", SPACES["full"], members_per_batch=4)
    members = population(4).members
    norms = [m for m in engine.model.modules() if type(m).__name__.endswith("RMSNorm")]
    with engine._applied(members):
        stacked = [norm.forward for norm in norms]
        with engine._fused.applied():
            assert [norm.forward for norm in norms] == stacked
            assert type(engine.model.model.layers[0].self_attn.forward).__name__ == "_Attention"


def test_long_texts_are_left_to_the_attention_of_the_library(monkeypatch):
    served = inprocess("llama").model
    seen = []
    library = type(served.model.layers[0].self_attn)
    forward = library.forward

    def watched(*arguments, **named):
        seen.append(1)
        return forward(*arguments, **named)

    monkeypatch.setattr(library, "forward", watched)
    with FusedDecoder(served).applied():
        seen.clear()
        short = logits(served)
        assert not seen
        monkeypatch.setattr(cpu_kernels, "SMALL_SCORES", 2 * 11 * 11 - 1)
        assert torch.allclose(logits(served), short, atol=1e-5)
    assert len(seen) == 3


@pytest.mark.parametrize("model", ["qwen2", "mistral", "gemma3"])
@pytest.mark.parametrize("space", ["full", "rank 1"])
def test_prompts_read_in_pieces_give_the_texts_of_prompts_read_whole(model, space, monkeypatch):
    engine = inprocess(model, SPACES[space])
    members = [*population(4).members, None]
    whole = tokens(engine.generate(members, examples(chat=True), GREEDY))
    widths = []

    def see(_module, _args, named, _output):
        rows, width = named["input_ids"].shape
        widths.append(width)
        masks = named["attention_mask"]
        for mask in masks.values() if isinstance(masks, dict) else [masks]:
            if width > 1:  # a mask of the whole prompt would grow with the square of its length
                held = mask.untyped_storage().nbytes()
                assert held == rows * width * mask.shape[3] * mask.dtype.itemsize

    handle = engine.model.base_model.register_forward_hook(see, with_kwargs=True)
    monkeypatch.setattr(germline.engines.decode, "PREFILL_TOKENS", 100)
    pieces = tokens(engine.generate(members, examples(chat=True), GREEDY))
    handle.remove()
    assert pieces == whole
    assert sum(width > 1 for width in widths) > 2
