"""Decoding: where a completion ends, what shares a batch, and how a token is chosen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import germline.engines.decode
from germline import noise
from germline.engines import grouped_attention
from germline.engines.decode import DecodeBatch
from germline.engines.prompt_batch import pad_prompts
from germline.engines.rows_in_progress import Detokenizer, RowsInProgress, cut_completion
from germline.engines.sampling import choose_tokens, draw_sampling_noise, sort_descending
from germline.nano import NANO_DIR
from germline.types import Completion, Decoding, Example
from tests.tiny import save_tiny, tokenizer
from tests.tiny_engines import (
    SPACES,
    TEXTS,
    examples,
    folder,
    inprocess,
    population,
    tokens,
    tokens_read,
)

GREEDY = Decoding(max_new_tokens=20)
SAMPLED = Decoding(max_new_tokens=20, temperature=1.0, noise_seed=5)


@pytest.fixture(scope="module", params=["full", "rank 1", "rank 6"])
def space(request):
    return SPACES[request.param]


@pytest.fixture(scope="module")
def free(space):
    """An engine, and what its members write when nothing stops them."""
    engine = inprocess("qwen2", space)
    return engine, engine.generate(MEMBERS, examples(), SAMPLED)


MEMBERS = (*population(6).members, None)


def flat(rows):
    return [completion for row in rows for completion in row]


def decode(ids):
    words = AutoTokenizer.from_pretrained(folder("qwen2"))
    return words.decode([one for one in ids if one not in (words.eos_token_id, words.pad_token_id)])


def test_every_end_of_sequence_token_ends_a_completion(free, space, tmp_path):
    _, unstopped = free
    counts = np.bincount([t for c in flat(unstopped) for t in c.tokens[1:-1] if t > 2])
    ends = [int(token) for token in counts.argsort()[-3:]]
    source = save_tiny(tmp_path, "qwen2", eos_token_id=ends)
    engine = inprocess(str(source), space)
    assert engine._decoder.detokenize.end_ids == {*ends, engine.pretrained.tokenizer.eos_token_id}
    stopped = engine.generate(MEMBERS, examples(), SAMPLED)
    seen = set()
    for before, after in zip(flat(unstopped), flat(stopped), strict=True):
        place = next((i for i, t in enumerate(before.tokens) if t in ends), None)
        if place is None:
            assert (after.tokens, after.finish) == (before.tokens, before.finish)
        else:
            seen.add(before.tokens[place])
            assert (after.tokens, after.finish) == (before.tokens[: place + 1], "eos")
    assert seen == set(ends)
    assert {completion.finish for completion in flat(stopped)} == {"eos", "length"}


def test_a_stop_string_ends_a_completion_and_is_not_part_of_its_text(free):
    engine, unstopped = free
    stops = ("e", "1", "or")
    decoding = Decoding(20, temperature=1.0, noise_seed=5, stop=stops)
    stopped = engine.generate(MEMBERS, examples(), decoding)
    for before, after in zip(flat(unstopped), flat(stopped), strict=True):
        places = [before.text.find(stop) for stop in stops if stop in before.text]
        assert not any(stop in after.text for stop in stops)
        if places:
            assert (after.text, after.finish) == (before.text[: min(places)], "stop")
            assert after.tokens == before.tokens[: len(after.tokens)]
            assert not any(stop in decode(after.tokens[:-1]) for stop in stops)
        else:
            assert after == before
    assert {completion.finish for completion in flat(stopped)} >= {"stop", "length"}


@pytest.fixture(scope="module")
def ends_early(tmp_path_factory):
    """A model with so many end tokens that completions have very different lengths."""
    place = tmp_path_factory.mktemp("ends")
    return str(save_tiny(place, "qwen2", eos_token_id=list(range(30, 90))))


@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_rows_that_leave_do_not_change_what_others_write(ends_early, space, decoding, monkeypatch):
    engine = inprocess(ends_early, space)
    batch = examples() * 4
    sizes = []
    layer = engine.model.model.layers[0]
    # Of decode steps alone: prompts that are there several times are read once.
    handle = layer.register_forward_hook(
        lambda _m, args, _o: sizes.append(len(args[0])) if args[0].shape[1] == 1 else None
    )
    leaving = engine.generate(MEMBERS, batch, decoding)
    assert min(sizes) < max(sizes)
    sizes.clear()
    monkeypatch.setattr(germline.engines.decode, "LEAVE_AT", 0)
    staying = engine.generate(MEMBERS, batch, decoding)
    assert min(sizes) == max(sizes)
    handle.remove()
    assert leaving == staying
    assert len({len(completion.tokens) for completion in flat(leaving)}) > 5


@pytest.mark.parametrize("chat", [False, True], ids=["raw", "chat"])
def test_a_shared_prefix_gives_the_tokens_of_whole_prompts(space, chat, monkeypatch):
    prompts = [f"What is the quick brown answer {end}" for end in ("1 + 2?", "fox", "jumps. 3")]
    batch = examples(prompts, chat=chat) * 6
    engine = inprocess("qwen2", space)
    assert len(pad_prompts([engine.encoder.encode(example) for example in batch], 0).prefix) > 3
    # Three members alone do not make 16 rows, so a dense member needs a prefix of 16 tokens.
    monkeypatch.setattr(germline.engines.decode, "SMALLEST_BATCH", 2)
    widths = []
    handle = engine.model.register_forward_hook(
        lambda _m, _a, kwargs, _o: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    shared = engine.generate(MEMBERS, batch, SAMPLED)
    assert sum(width > 1 for width in widths[:2]) == 2
    handle.remove()
    monkeypatch.setattr(germline.engines.prompt_batch, "_common_prefix", lambda _prompts: ())
    whole = engine.generate(MEMBERS, batch, SAMPLED)
    different = {
        (member, place % len(prompts))
        for member, rows in enumerate(zip(tokens(whole), tokens(shared), strict=True))
        for place, (one, other) in enumerate(zip(*rows, strict=True))
        if one != other
    }
    # Both round differently, so one of the 420 draws may be a near tie (on a CPU with AVX2 one is).
    assert len(different) <= 1


def test_a_completion_does_not_depend_on_its_neighbors(space):
    engine = inprocess("llama", space)
    batch = examples()
    together = engine.generate(MEMBERS, batch, SAMPLED)
    for place, example in list(enumerate(batch))[:3]:
        alone = engine.generate(MEMBERS, [example], SAMPLED)
        assert [row[0] for row in alone] == [row[place] for row in together]
    assert engine.generate(MEMBERS[2:4], batch, SAMPLED) == together[2:4]


@pytest.mark.parametrize("model", ["qwen2", "mistral", "gemma3"])
@pytest.mark.parametrize("space", ["full", "rank 1"])
def test_prompts_read_in_pieces_give_the_texts_of_prompts_read_whole(model, space, monkeypatch):
    engine = inprocess(model, SPACES[space])
    members = [*population(4).members, None]
    whole = tokens(engine.generate(members, examples(chat=True), Decoding(max_new_tokens=12)))
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
    pieces = tokens(engine.generate(members, examples(chat=True), Decoding(max_new_tokens=12)))
    handle.remove()
    assert pieces == whole
    assert sum(width > 1 for width in widths) > 2


def test_small_scores_in_fp32_are_attended_to_as_by_the_library(monkeypatch):
    model, half = (inprocess("llama", dtype=dtype).model for dtype in ("float32", "bfloat16"))
    monkeypatch.setattr("inspect.getsource", lambda _: 'if implementation == "sdpa": ...')
    names = [one.config._attn_implementation for one in (model, half, inprocess("llama").model)]
    assert names == [grouped_attention.NAME, "sdpa", "sdpa"]
    states = torch.randn(2, 4, 3, 8), *torch.randn(2, 2, 2, 5, 8), torch.randn(2, 1, 3, 5)
    both = (grouped_attention.grouped_attention, sdpa_attention_forward)
    ours, theirs = (f(model.model.layers[0].self_attn, *states, scaling=0.3)[0] for f in both)
    torch.testing.assert_close(ours, theirs)


def test_padding_shares_nothing_but_the_prefix_and_leaves_every_prompt_a_token():
    padded = pad_prompts([[7, 8, 9], [7, 8], [7, 8, 9, 4]], padding_id=0)
    assert padded.prefix == (7,)
    assert padded.rest.tolist() == [[0, 8, 9], [0, 0, 8], [8, 9, 4]]
    assert padded.real.tolist() == [[False, True, True], [False, False, True], [True] * 3]
    assert padded.lengths == (3, 2, 4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_sampled_tokens_have_the_frequencies_of_the_softmax(temperature):
    draws = 20_000
    logits = torch.tensor([1.2, -0.3, 0.8, -2.0, 0.0, 2.0, -1.0])
    drawn = noise.sampling_uniforms(11, 0, "frequencies", range(draws), 1)
    decoding = Decoding(max_new_tokens=1, temperature=temperature)
    rows = choose_tokens(logits.expand(draws, -1), torch.from_numpy(drawn[:, 0]), decoding)
    found = rows.bincount(minlength=7).double()
    expected = torch.softmax(logits.double() / temperature, -1) * draws
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert chi_square < 22.46  # 0.1 % of chi-square with 6 degrees of freedom lies above


def test_the_nucleus_is_the_smallest_set_of_likely_tokens_that_reaches_top_p():
    logits = torch.log(torch.tensor([0.15, 0.4, 0.05, 0.3, 0.1]))
    for top_p, kept in ((0.05, [1]), (0.4, [1]), (0.41, [1, 3]), (0.7, [1, 3]), (0.8, [0, 1, 3])):
        drawn = torch.linspace(0.0001, 0.9999, 4001, dtype=torch.float64)
        decoding = Decoding(max_new_tokens=1, temperature=1.0, top_p=top_p - 1e-6)
        found = choose_tokens(logits.expand(4001, -1), drawn, decoding).bincount(minlength=5)
        assert found.nonzero().flatten().tolist() == kept
        share = torch.softmax(logits, -1)[kept]
        assert torch.allclose(found[kept] / 4001, share / share.sum(), atol=1e-3)


def test_the_extremes_of_sampling_noise_choose_the_likeliest_and_the_least_likely_token():
    logits = torch.tensor([[0.0, 3.0, 1.0]] * 2)
    # The second is 1.0 in fp32.
    sampling_noise = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    assert choose_tokens(logits, sampling_noise, SAMPLED).tolist() == [1, 0]
    assert choose_tokens(logits, sampling_noise, GREEDY).tolist() == [1, 1]


def test_equal_members_have_equal_luck_and_everything_else_has_its_own(space):
    engine = inprocess("qwen2", space)
    prompt = ["the quick brown fox"] * 8

    def write(decoding):
        rows = tokens(engine.generate([None] * 4, examples(prompt), decoding))
        assert rows == [rows[0]] * 4
        return rows[0]

    first = write(SAMPLED)
    assert len(set(first)) == len(prompt)  # the examples differ in their index alone
    assert all(len(set(row)) > 4 for row in first)  # so do positions
    assert write(SAMPLED) == first
    for change in ({"noise_seed": 6}, {"noise_generation": 1}, {"noise_stream": "held out"}):
        assert not set(write(replace(SAMPLED, **change))) & set(first)


@pytest.mark.parametrize("space_name", ["rank 1", "lora", "full"])
@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_samples_are_those_of_rows_that_read_their_own(space_name, decoding, monkeypatch):
    engine = inprocess(str(NANO_DIR), SPACES[space_name])
    members = (*population(2, sigma=0.05).members, None)
    batch = [replace(one, sample=sample) for sample in range(3) for one in examples(TEXTS[:3])]
    with tokens_read(engine) as shared:
        together = tokens(engine.generate(members, batch, decoding))
    monkeypatch.setattr(DecodeBatch, "prefill_distinct", DecodeBatch.prefill)
    with tokens_read(engine) as apart:
        assert tokens(engine.generate(members, batch, decoding)) == together
    lengths = [len(engine.encoder.encode(one)) for one in batch]
    prefix = len(pad_prompts([engine.encoder.encode(one) for one in batch], 0).prefix)
    saved = len(members) * 6 * (max(lengths) - prefix)
    assert sum(apart) - sum(shared) >= saved > 0
    if decoding is SAMPLED:
        assert len({row for member in together for row in member}) > 2 * len(batch)


def tagged_tokenizer():
    """Return a tokenizer whose tags of thinking are special tokens."""
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    return words


def test_special_tokens_that_are_part_of_a_text_stay_in_it():
    words = tagged_tokenizer()
    text = "<think>1 + 1 = 3</think>2"
    ids = words(text)["input_ids"]
    end = words.eos_token_id
    assert Detokenizer(words)([words.pad_token_id, *ids, end]) == text
    detokenize = Detokenizer(words, frozenset({end}))
    assert cut_completion(detokenize, [*ids, end], 1, Decoding(99)).text == text


def test_a_control_token_that_is_a_stop_string_ends_a_text():
    words = tagged_tokenizer()
    first, last = (words(part)["input_ids"] for part in ("1 + 1", "= 3"))
    tokens = (*first, words.pad_token_id, *last)

    def cut(*stop):
        return cut_completion(Detokenizer(words), tokens, 1, Decoding(99, stop=stop))

    ended = cut("no", words.pad_token)
    assert ended == Completion(words.decode(first), tokens[: len(first) + 1], "stop", 1)
    assert cut("no").finish == "length"


@pytest.mark.parametrize("stop", ["3", " 3", "= 3</think>", "</think>", "é", "2"])
def test_a_stop_string_is_found_at_the_token_that_completes_it(stop):
    words = tagged_tokenizer()
    ids = words("<think>1 + 1 é = 3</think>2 and so on")["input_ids"]
    rows = RowsInProgress(Detokenizer(words), Decoding(99, stop=(stop,)), 1)
    for token in ids:
        rows.write([0], [token])
    served = cut_completion(Detokenizer(words), ids, 1, Decoding(99, stop=(stop,)))
    assert rows.completion(0, 1) == served
    count = next(n for n in range(1, 1 + len(ids)) if stop in words.decode(ids[:n]))
    text = words.decode(ids[:count])
    assert served == Completion(text[: text.find(stop)], tuple(ids[:count]), "stop", 1)
    assert not rows._decoded  # the texts before it are not kept


NAN, INF = float("nan"), float("inf")
STRANGE = [
    [0.0, 3.0, 3.0, 1.0],
    [-INF, -INF, -INF, -INF],
    [1.0, NAN, INF, NAN],
    [INF, 1.0, INF, 2.0],
    [-0.0, 0.0, -0.0, 0.0],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_greedy_token_is_that_of_argmax(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    many_ties = torch.randint(-9, 9, (50, 700), generator=generator).to(dtype)
    for logits in (many_ties, torch.tensor(STRANGE, dtype=dtype)):
        found = choose_tokens(logits, torch.zeros(len(logits)), Decoding(1))
        assert found.equal(logits.argmax(-1))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_probabilities_are_sorted_as_torch_sorts_them(threads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    rounded = torch.randint(0, 40, (3, 5000), generator=generator) / 39
    few = torch.tensor([[0.0, 1.0, 0.5, 1.0], [NAN, 0.5, -NAN, 0.0], [1e-45, 0.0, 1e-39, 1e-45]])
    one_nan, another = 0x7FC00000, 0x7FC00123
    nans = torch.tensor([[one_nan, 0, another, one_nan]], dtype=torch.int32).view(torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for values in (rounded, few, nans, rounded[:, ::2], torch.softmax(rounded, -1), few[:0]):
            ordered, columns = sort_descending(values)
            expected = values.sort(dim=-1, descending=True, stable=True)
            assert columns.equal(expected.indices)
            assert ordered.nan_to_num(7.0).equal(expected.values.nan_to_num(7.0))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_sampled_tokens_are_those_of_a_stable_sort(top_p: float) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(-30, 30, (64, 900), generator=generator) / 8
    sampling_noise = torch.rand(64, generator=generator)
    probabilities = torch.softmax(logits / 0.7, dim=-1)
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    mass = ordered.cumsum(-1)
    kept = (mass - ordered) < top_p
    target = sampling_noise[:, None] * (ordered * kept).sum(-1, keepdim=True)
    place = torch.minimum((mass < target).sum(-1), kept.sum(-1) - 1)
    found = choose_tokens(logits, sampling_noise, Decoding(1, 0.7, top_p))
    assert found.equal(tokens.gather(-1, place[:, None])[:, 0])


@pytest.mark.parametrize("turn", [0, 2])
def test_each_sample_of_an_example_has_noise_of_its_own(turn: int) -> None:
    decoding = Decoding(5, noise_seed=3, noise_generation=1)
    places = [(4, 1), (7, 0), (4, 0), (7, 2), (4, 2)]
    examples = [Example(index, "", "", chat=False, sample=sample) for index, sample in places]
    drawn = draw_sampling_noise(examples, decoding, turn)
    assert len(drawn.unique(dim=0)) == len(places)
    for row, (index, sample) in zip(drawn, places, strict=True):
        stream = "train" if sample == 0 else f"train sample {sample}"
        expected = noise.sampling_uniforms(3, 1, stream, [index], 5, start=5 * turn)
        assert row.tolist() == expected[0].tolist()
