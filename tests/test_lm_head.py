"""The LM head is one product of two matrices, wherever it is applied."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from germline.config import Full, LowRank
from germline.types import Decoding
from tests.slow_cases import mostly_slow
from tests.tiny_engines import SPACES, examples, inprocess, population


def products_of_the_head(work: Callable[[], object], vocabulary: int) -> set[str]:
    """Name the matrix products with a side as long as the vocabulary that some work runs."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    return {
        event.name.removeprefix("aten::")
        for event in profiler.events()
        if event.name in ("aten::mm", "aten::addmm", "aten::bmm")
        and any(vocabulary in shape for shape in event.input_shapes)
    }


HEADS = [
    (*model, space)
    for model in (("qwen2", "float32"), ("gemma3", "bfloat16"), ("gpt2", "float32"))
    for space in ("low_rank", "full")
]


QUICK = [("qwen2", "float32", "low_rank")]


@pytest.mark.parametrize(("model", "dtype", "space"), mostly_slow(HEADS, quick=QUICK))
def test_the_head_is_never_expanded_to_every_row(model, dtype, space):
    section = LowRank() if space == "low_rank" else Full()
    engine = inprocess(model, section, dtype=dtype, members_per_batch=1)
    vocabulary = len(engine.model.get_output_embeddings().weight)
    texts, members = examples(), population(2).members
    found = products_of_the_head(lambda: engine.generate(members, texts, Decoding(3)), vocabulary)
    assert found == {"mm"}
    completions = engine.generate(members, texts, Decoding(3))
    found = products_of_the_head(lambda: engine.read(members, texts, completions), vocabulary)
    assert found == {"mm"}


def test_a_slice_of_hidden_states_gives_the_logits_of_the_whole():
    engine = inprocess("qwen2", LowRank(), dtype="bfloat16")
    tokens = torch.arange(40).view(4, 10)
    whole = engine.logits(None, tokens)
    (last,) = engine._read([None], tokens, 3)
    assert torch.equal(last, whole[:, -3:])


@pytest.mark.parametrize("space", ["rank 2", "lora", "subspace", "full"])
def test_prompts_of_different_lengths_do_not_cost_the_logits_between_them(space, monkeypatch):
    engine = inprocess("qwen2", SPACES[space], members_per_batch=2)
    texts = [replace(one, prompt=one.prompt * 2 * (i + 1)) for i, one in enumerate(examples())]
    members = population(2).members
    completions = engine.generate(members, texts, Decoding(3))
    expected = engine.log_probabilities(members, texts, completions)
    assert engine.pack_completions(texts, completions).keep > 20

    vocabulary = engine.model.get_input_embeddings().num_embeddings
    monkeypatch.setattr("germline.engines.inprocess.LOGITS_AT_ONCE", 6 * vocabulary)
    widths = set()
    head = engine.model.get_output_embeddings()
    with head.register_forward_hook(lambda _head, _input, out: widths.add(out.shape[1])):
        found = engine.read(members, texts, completions)
    assert max(widths) <= 3
    for member, before, written in zip(found, expected, completions, strict=True):
        for logits, other, one in zip(member, before, written, strict=True):
            logs = logits.log_softmax(-1)[range(len(one.tokens)), list(one.tokens)]
            assert logs.tolist() == pytest.approx(other, abs=1e-5)
