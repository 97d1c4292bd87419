"""Scoring given completions: prompts are read once, and the numbers are those of each row alone."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from germline.config import Full, LowRank
from germline.engines import completion_scorer
from germline.engines.completion_scorer import _pieces, log_normalizers
from germline.types import Completion, Decoding
from tests.slow_cases import mostly_slow
from tests.tiny_engines import SPACES, TEXTS, examples, inprocess, population, tokens_read

SAMPLED = Decoding(max_new_tokens=9, temperature=1.5, noise_seed=2)
LENGTHS = (9, 4, 1, 0, 7, 9)
"""Tokens of the samples of each prompt."""


def samples(texts=TEXTS[:3], count=6):
    """Several examples of each prompt, next to those of other prompts."""
    return [replace(one, sample=sample) for sample in range(count) for one in examples(texts)]


def cut(row, lengths=LENGTHS):
    """Cut the completions of `samples` to lengths, so that some are short and some empty."""
    each = len(row) // len(lengths)
    return [
        replace(one, tokens=one.tokens[: lengths[place // each]]) for place, one in enumerate(row)
    ]


def alone(engine, member, example, completion):
    """Score a completion from the logits of its own text."""
    if not completion.tokens:
        return []
    logits = engine.read([member], [example], [[completion]])[0][0]
    places = range(len(completion.tokens))
    return logits.double().log_softmax(-1)[places, list(completion.tokens)].tolist()


def scores_alone(engine, members, batch, completions):
    """Score each row by itself: `[members][rows]`, to compare with."""
    return [
        [
            pytest.approx(alone(engine, member, example, completion), abs=1e-5)
            for example, completion in zip(batch, written, strict=True)
        ]
        for member, written in zip(members, completions, strict=True)
    ]


@pytest.mark.parametrize(
    ("model", "space"),
    mostly_slow(
        (
            *(("qwen2", space) for space in ("rank 1", "rank 6", "lora", "full", "subspace")),
            ("gpt2", "singular"),
            ("mistral", "rank 1"),
            ("gemma3", "lora"),
            ("gemma2", "rank 1"),
            *((one, "upper lora") for one in ("qwen2", "gpt2", "mistral", "gemma3")),
            ("qwen2_moe", "full"),
        ),
        quick={
            ("qwen2", "rank 1"),
            ("qwen2", "full"),
            ("gpt2", "singular"),
            ("gemma3", "upper lora"),
        },
    ),
)
def test_scores_are_those_of_each_row_read_alone(model, space):
    upper = SPACES["lora"].model_copy(update={"layers": "1-2"})
    engine = inprocess(model, {**SPACES, "upper lora": upper}[space])
    members = [*population(4, sigma=0.05).members, None]
    batch = samples()
    rows = [cut(row) for row in engine.generate(members, batch, SAMPLED)]
    same = [rows[-1]] * len(members)
    own = [row if place % 2 else cut(row, (2,) * 6) for place, row in enumerate(rows)]
    for written in (same, own):
        found = engine.log_probabilities(members, batch, written)
        assert found == scores_alone(engine, members, batch, written)
        assert found == engine.log_probabilities(members, batch, written)


@pytest.mark.parametrize("space", ["rank 1", "full", "subspace"])
def test_members_share_the_layers_below_all_that_is_searched(space):
    engine = inprocess("qwen2", SPACES[space].model_copy(update={"layers": "1-2"}))
    members, batch = population(4).members, samples(count=2)
    own = engine.generate(members, batch, SAMPLED)
    rows = [0, 0, 0]
    for number, layer in enumerate(engine.model.model.layers):
        layer.mlp.register_forward_hook(
            lambda _, x, y, n=number: rows.__setitem__(n, rows[n] + len(x[0]))
        )
    for written, sharing in ((own, 1), (own[:1] * len(members), len(members))):
        rows[:] = [0, 0, 0]
        engine.log_probabilities(members, batch, written)
        assert rows[0] * sharing == rows[1] == rows[2]


def test_copies_of_the_center_have_its_scores():
    engine, batch = inprocess("qwen2"), samples(count=2)
    written = engine.generate([None], batch, SAMPLED)
    found = engine.log_probabilities([None] * 3, batch, written * 3)
    assert found == scores_alone(engine, [None] * 3, batch, written * 3)


def test_texts_that_are_read_in_parts_have_the_same_scores(monkeypatch):
    engine = inprocess("mistral", SPACES["rank 1"])
    members, batch = population(4, sigma=0.05).members, samples()
    written = [cut(row) for row in engine.generate(members, batch, SAMPLED)]
    expected = scores_alone(engine, members, batch, written)
    for at_once in (1, 12, 40, 200):
        monkeypatch.setattr(completion_scorer, "TOKENS_AT_ONCE", at_once)
        assert engine.log_probabilities(members, batch, written) == expected
    monkeypatch.undo()
    # All logits of a calibration at 0.5B with answers of 128 tokens would be 21 GB.
    sizes: list[int] = []
    head = engine.model.get_output_embeddings()
    head.register_forward_hook(lambda _m, args, _o: sizes.append(args[0].shape[:-1].numel()))
    monkeypatch.setattr(completion_scorer, "LOGITS_AT_ONCE", 1)
    assert engine.log_probabilities(members, batch, written) == expected
    assert max(sizes) <= len(members) * len(batch)


@pytest.mark.parametrize("space", ["rank 1", "lora", "full", "subspace"])
def test_each_member_reads_every_prompt_once(space):
    engine = inprocess("qwen2", SPACES[space], members_per_batch=2)
    members, batch = population(4).members, samples(TEXTS[:2], count=5)
    written = [Completion("", (7, 8, 9, 10), "length", 0)] * len(batch)
    prompts = [len(engine.encoder.encode(one)) for one in examples(TEXTS[:2])]
    with tokens_read(engine) as sizes:
        engine.log_probabilities(members, batch, [written] * len(members))
    padding = 2 * max(prompts) - sum(prompts)
    # The last token of a completion predicts nothing.
    assert sum(sizes) == len(members) * (sum(prompts) + padding + 3 * len(batch))


def test_completions_without_tokens_have_no_scores():
    engine = inprocess("qwen2", SPACES["rank 1"])
    nothing = Completion("", (), "length", 0)
    assert engine.log_probabilities([None], samples(), [[nothing] * 18]) == [[[]] * 18]


def test_texts_of_similar_length_are_read_together():
    lengths = [40, 39, 38, 10, 10, 9, 9, 0]
    members = completion_scorer.PASS_TOKENS // 8
    assert [*_pieces(np.array(lengths), members, 10**9)] == [slice(0, 3), slice(3, 7)]
    assert [*_pieces(np.array(lengths), 1, 10**9)] == [slice(0, 7)]
    assert [*_pieces(np.array([5, 5, 5]), 1, 10)] == [slice(0, 2), slice(2, 3)]
    assert [*_pieces(np.array([0, 0]), 1, 10)] == []
    many = [*_pieces(np.full(10_001, 3), 1, 900)]
    assert [one.start for one in many[1:]] == [one.stop for one in many[:-1]]
    assert (many[0].start, many[-1].stop) == (0, 10_001)
    assert 200 < min(one.stop - one.start for one in many[:-1]) <= 300


def test_normalizers_are_computed_a_few_rows_at_a_time(monkeypatch):
    logits = torch.randn(50, 37, generator=torch.Generator().manual_seed(0)) * 9
    whole = log_normalizers(logits)
    monkeypatch.setattr(completion_scorer, "LOGITS_IN_CACHE", 100)
    assert log_normalizers(logits).tolist() == pytest.approx(whole.tolist(), abs=1e-5)
    assert whole[3].item() == pytest.approx(math.log(logits[3].exp().sum().item()), abs=1e-5)


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
