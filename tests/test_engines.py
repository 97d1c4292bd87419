"""The inprocess engine at its edges: prompts, dtypes, where members stand, and what it refuses."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from germline.config import LowRank
from germline.engines import sampling, toy
from germline.engines.model_tensors import serving_dtype
from germline.engines.prompt_batch import encode_prompt
from germline.engines.toy import ToyEngine
from germline.optimizers import Sgd
from germline.types import Decoding, Example, GermlineError, Update
from tests.refusals import refusal
from tests.slow_cases import mostly_slow
from tests.tiny import save_tiny
from tests.tiny_engines import (
    MODELS,
    SPACES,
    TEXTS,
    bits,
    examples,
    folder,
    inprocess,
    population,
    same_bits,
    tokens,
)

GREEDY = Decoding(max_new_tokens=8)


@pytest.mark.parametrize("text", [*TEXTS, "Say <answer>5</answer>", " é\n", ""])
def test_a_chat_prompt_has_the_ids_of_the_models_own_template(text):
    tokenizer = AutoTokenizer.from_pretrained(folder("qwen2"))
    message = [{"role": "user", "content": text}]
    written = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    expected = tokenizer(written, add_special_tokens=False)["input_ids"]
    assert encode_prompt(tokenizer, Example(0, text, "", chat=True)) == expected
    assert written.endswith("<|im_start|>assistant\n")
    raw = encode_prompt(tokenizer, Example(0, f"raw {text}", "", chat=False))
    assert tokenizer.decode(raw) == f"raw {text}"


def test_prompt_tokens_count_the_prompt_without_padding():
    engine = inprocess()
    (row,) = engine.generate([None], examples(), GREEDY)
    assert [c.prompt_tokens for c in row] == [len(engine.encoder.encode(one)) for one in examples()]


@pytest.mark.parametrize("dtype", mostly_slow(["bfloat16", "float16"], quick={"bfloat16"}))
@pytest.mark.parametrize("model", MODELS)
def test_half_precision_gives_the_logits_of_transformers_in_that_dtype(model, dtype):
    engine = inprocess(model, dtype=dtype)
    plain = AutoModelForCausalLM.from_pretrained(folder(model), dtype=getattr(torch, dtype))
    ids = torch.arange(200)[None]  # far positions: rotary frequencies must stay in fp32
    with torch.no_grad():
        assert torch.equal(engine.logits(None, ids), plain(ids).logits)


def test_a_dtype_that_nothing_here_serves_is_refused(monkeypatch):
    for stored in (torch.float64, torch.float8_e4m3fn):
        with pytest.raises(GermlineError, match=r"^engine\.dtype=auto is float"):
            serving_dtype("auto", stored, on_gpu=True)
        assert serving_dtype("auto", stored, on_gpu=False) == torch.float32
        assert serving_dtype("bfloat16", stored, on_gpu=True) == torch.bfloat16
    monkeypatch.setattr("germline.engines.model_tensors.has_bfloat16", lambda: False)
    with pytest.raises(GermlineError, match=r"^engine\.dtype=auto .* engine\.dtype=float16"):
        serving_dtype("auto", torch.bfloat16, on_gpu=True)  # it would be emulated
    assert serving_dtype("bfloat16", torch.bfloat16, on_gpu=True) == torch.bfloat16
    assert serving_dtype("auto", torch.float16, on_gpu=True) == torch.float16


@pytest.mark.parametrize("space", ["full", "rank 2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_after_an_update_the_serving_copy_is_the_rounded_master(space, dtype):
    engine = inprocess("llama", SPACES[space], dtype=dtype)
    before = bits(engine)
    addresses = {name: tensor.data_ptr() for name, tensor in engine.serving.items()}
    engine.apply(Update(0, 0, 0.1, 0.5, (0.5, -1.0)))
    for info in engine.weights.searched:
        serving = engine.serving[info.name]
        assert torch.equal(serving, engine.weights.tensors[info.name].to(serving.dtype))
        assert not torch.equal(serving, before[f"serving {info.name}"])
    assert addresses == {name: tensor.data_ptr() for name, tensor in engine.serving.items()}


def test_the_columnwise_and_the_batched_correction_agree(monkeypatch):
    engine = inprocess("llama", LowRank(rank=3))
    ids = torch.arange(20, 40)[None]
    member = population(2).members[1]
    columnwise = engine.logits(member, ids)
    monkeypatch.setattr("germline.engines.batched_lora.COLUMNWISE_RANK", 0)
    torch.testing.assert_close(engine.logits(member, ids), columnwise, rtol=1e-5, atol=1e-5)


def test_a_prompt_of_token_ids_takes_the_place_of_its_text():
    engine = inprocess()
    written = examples(chat=True)
    ids = [tuple(engine.encoder.encode(example)) for example in written]
    given = [Example(9 - i, "another text", "", chat=False, token_ids=t) for i, t in enumerate(ids)]
    assert engine.generate([None], given, GREEDY) == engine.generate([None], written, GREEDY)
    toy = ToyEngine(None, Sgd(0.0))
    (of_text,), (of_ids,) = (
        toy.generate([None], [example], GREEDY)[0]
        for example in (
            Example(0, "!#", "", chat=False),
            Example(0, "", "", False, {}, (), (33, 35)),
        )
    )
    assert of_text == of_ids


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_id_that_the_model_lacks_is_refused(token):
    message = refusal(inprocess().encoder.encode, Example(7, "", "", False, {}, (), (1, token)))
    assert f"example 7 has token {token}, but the model" in message


def test_the_tokens_of_prompts_are_forgotten_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr("germline.engines.prompt_batch.PROMPTS_KEPT", 3)
    encoder = inprocess().encoder
    for number in range(10):
        encoder.encode(Example(0, f"fox {number}", "", chat=False))
        assert len(encoder._encoded) <= 3


def test_a_chat_task_without_a_chat_template_is_refused(tmp_path):
    source = save_tiny(tmp_path, "qwen2")
    (source / "chat_template.jinja").unlink()
    engine = inprocess(str(source))
    assert "task.chat=false" in refusal(engine.generate, [None], examples(chat=True), GREEDY)
    assert engine.generate([None], examples(chat=False), GREEDY)


def test_prompts_and_members_that_cannot_be_evaluated_are_refused():
    engine = inprocess()
    message = refusal(engine.generate, [None], [Example(17, "", "", chat=False)], GREEDY)
    assert "the prompt of example 17 has no tokens" in message
    message = refusal(engine.generate, [None], examples(["fox"]), Decoding(255))
    assert "together 257, above the model's context of 256" in message
    assert "task.max_new_tokens" in message
    assert engine.generate([None], examples(["fox"]), Decoding(254))
    with pytest.raises(AssertionError, match="without a space"):
        engine.generate(population(2).members, examples(), GREEDY)


WINDOWS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 7},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "gemma3": {"sliding_window": 5, "tie_word_embeddings": False},
}


@pytest.mark.parametrize("family", WINDOWS)
@torch.inference_mode()
def test_texts_that_outgrow_a_sliding_window_are_those_of_transformers(family, tmp_path):
    # Many tokens end a text, so rows leave the batch; the shared prefix outgrows the window, too.
    ends = list(range(3, 320, 12))
    source = save_tiny(tmp_path, family, eos_token_id=ends, **WINDOWS[family])
    engine = inprocess(str(source))
    batch = examples([f"What is the quick brown {text}" for text in TEXTS] * 8)
    plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    (found,) = engine.generate([None], batch, Decoding(max_new_tokens=20))
    for place, example in enumerate(batch[: len(TEXTS)]):
        ids = torch.tensor([engine.encoder.encode(example)])
        text = plain.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
        written = {completion.tokens for completion in found[place :: len(TEXTS)]}
        assert written == {tuple(text[0, ids.shape[1] :].tolist())}
    assert len({len(completion.tokens) for completion in found}) > 1


CPU_IS_FULL = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"


@pytest.mark.parametrize("space", ["rank 1", "full"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError(CPU_IS_FULL)])
def test_out_of_memory_names_the_settings_that_make_batches_smaller(space, error, monkeypatch):
    engine = inprocess("qwen2", SPACES[space])
    digest, before = engine.weights.digest(), bits(engine)

    def is_full(*_args, **_kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", is_full)
        message = refusal(engine.generate, population(5 + 1).members[:5], examples(), GREEDY)
    assert "out of memory on cpu" in message
    assert "microbatch.rows" in message
    assert engine.weights.digest() == digest
    assert same_bits(before, bits(engine))
    assert engine.generate([None], examples(), GREEDY)


def test_other_errors_of_the_model_are_not_taken_for_a_lack_of_memory(monkeypatch):
    engine = inprocess()

    def breaks(*_args, **_kwargs):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(engine.model, "forward", breaks)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        engine.generate([None], examples(), GREEDY)


def test_a_missing_tokenizer_pad_token_is_no_obstacle(tmp_path):
    source = save_tiny(tmp_path, "qwen2")
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(source)
    engine = inprocess(str(source))
    assert engine.pretrained.tokenizer.pad_token_id is None
    assert engine.generate([None], examples(), GREEDY) == inprocess().generate(
        [None], examples(), GREEDY
    )


@pytest.mark.gpu
@pytest.mark.parametrize("space", ["full", "rank 1", "rank 6", "lora"])
def test_a_gpu_leaves_no_trace_and_moves_the_masters_to_the_bits_of_a_cpu(space):
    near, far = (inprocess("qwen2", SPACES[space], device=device) for device in ("cpu", "cuda"))
    digest, before = far.weights.digest(), bits(far)
    assert digest == near.weights.digest()
    far.generate([*population().members, None], examples() * 4, GREEDY)
    assert far.weights.digest() == digest
    assert same_bits(before, bits(far))
    for engine in (near, far):
        engine.apply(Update(3, 0, 0.02, 0.5, (0.5, -1.0, 0.25)))
    assert far.weights.digest() == near.weights.digest() != digest


def test_centers_of_an_engine_without_a_space_share_one_batch(monkeypatch):
    engine = inprocess("qwen2")
    rows = []
    forward = engine.model.forward

    def counted(*inputs, **named):
        rows.append(len(named["input_ids"]))
        return forward(*inputs, **named)

    monkeypatch.setattr(engine.model, "forward", counted)
    together = engine.generate([None] * 4, examples(), Decoding(2))
    assert set(rows[-1:]) == {4 * len(examples())}
    alone = engine.generate([None], examples(), Decoding(2))
    assert tokens(together) == tokens(alone) * 4


EXAMPLES = [Example(number, text, "", chat=False) for number, text in enumerate(("!#", "b", "xyz"))]
LONGEST = 48


def sampled(*stop):
    return Decoding(LONGEST, temperature=1.0, stop=stop, noise_seed=1, noise_generation=2)


def generated(decoding, monkeypatch):
    """Return the completions, and how many tokens were chosen for each."""
    chosen = []
    choose_tokens = sampling.choose_tokens

    def counted(*arguments):
        chosen.append(choose_tokens(*arguments))
        return chosen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(toy, "choose_tokens", counted)
        (row,) = ToyEngine(None, Sgd(0.0)).generate([None], EXAMPLES, decoding)
    return row, len(chosen)


def in_every_text(whole, size):
    """Return strings that begin one after another in every completion, `size` characters each."""
    return [completion.text[place : place + size] for completion in whole for place in (4, 5)]


@pytest.mark.parametrize("kind", ["letters", "words", "overlapping", "none"])
def test_generation_ends_where_no_completion_can_change(kind, monkeypatch):
    whole, steps = generated(sampled(), monkeypatch)
    assert steps == max(len(one.tokens) for one in whole) > 30
    stop = {
        "letters": list("etaoins "),
        "words": in_every_text(whole, 3),
        # The longer string begins first and ends last.
        "overlapping": [one.text[5] + one.text[6] for one in whole]
        + [one.text[4:9] for one in whole],
        "none": ["no such text"],
    }[kind]
    decoding = sampled(*stop)
    stopped, fewer = generated(decoding, monkeypatch)
    assert stopped == [toy._completion(one.tokens, one.prompt_tokens, decoding) for one in whole]
    if kind == "overlapping":
        assert [one.text for one in stopped] == [one.text[:4] for one in whole]
    assert fewer < steps - 10 if kind != "none" else fewer == steps
