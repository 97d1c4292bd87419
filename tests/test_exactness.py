"""Exactness: members equal merged models, and the field's mistakes with weights stay out."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from germline.config import MicrobatchSettings
from germline.engines import decode, sampling
from germline.rollout import evaluate_members
from germline.types import Decoding, Example, SeedPerturbation, Update
from tests import merged_models
from tests.merged_models import teacher_forced
from tests.tiny_engines import (
    SPACES,
    beside_experts,
    bits,
    drawn,
    examples,
    folder,
    inprocess,
    population,
)
from tests.toy_runs import GradedHere

ERROR = 1e-4
"""How far a member's logits may be from those of the merged model, in fp32."""


QUICK = {
    ("qwen2", "full"): 2,
    ("qwen2 of few words", "full"): 4,
    ("qwen2", "rank 1"): 6,
    ("qwen2", "rank 6"): 2,
    ("gpt2", "rank 1"): 2,
    ("mistral", "lora"): 2,
    ("gemma3", "lora"): 2,
    ("qwen2", "lora"): 6,
    ("llama", "lora of rank 6"): 2,
    ("qwen2 of few words", "subspace"): 2,
    ("gpt2", "singular"): 2,
    ("mixtral", "full"): 2,
    ("qwen2_moe", "rank 2"): 2,
    ("qwen3_moe", "rank 1"): 2,
    ("phi3", "rank 1"): 2,
    ("olmo2", "rank 1"): 2,
    ("gemma2", "rank 1"): 2,
    ("smollm3", "rank 1"): 2,
}
SLOW = {
    ("llama", "rank 1"): 4,
    ("gpt2", "full"): 2,
    ("mistral", "rank 2"): 4,
    ("gemma3", "rank 1"): 4,
    ("llama", "singular"): 2,
    ("mixtral", "rank 1"): 4,
    ("qwen3_moe", "full"): 2,
    ("llama", "full"): 4,
    ("qwen2 of few words", "rank 1"): 16,
    ("llama", "rank 2"): 4,
    ("gpt2", "rank 6"): 4,
    ("gpt2", "lora"): 4,
    ("mistral", "full"): 2,
    ("gemma3", "full"): 2,
    ("qwen2 of few words", "lora"): 6,
    ("gpt2", "subspace"): 2,
    ("mixtral", "lora"): 2,
    ("qwen3_moe", "lora"): 2,
}
"""Model, space and members; a model and a space of a slow case each have a quick one, too."""

NO_TASK = SimpleNamespace(grader=lambda _text, _example: {"none": 0.0}, rubric={"none": 1.0})
WORDS = ("the", "quick", "brown", "fox", "jumps.", "The", "answer", "is", "3.", "What", "is", "1")
PROMPTS = [
    Example(index, " ".join(WORDS[index % 5 : index % 5 + 1 + index * 7 % 11]), "", index % 3 == 0)
    for index in range(13)
]
NEW = 12


def merged(model, section, weights, member):
    return merged_models.merged(folder(model), section, weights, member, torch.float32)


def logits_of(plain, ids):
    return plain(ids).logits


def greedy(plain, prompts):
    """What `generate` of transformers writes, in one left-padded batch."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    written = plain.generate(
        ids, attention_mask=seen, max_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    ends = plain.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    rows = written[:, width:].tolist()
    cuts = [next((i + 1 for i, t in enumerate(row) if t in ends), NEW) for row in rows]
    return [tuple(row[:cut]) for row, cut in zip(rows, cuts, strict=True)]


@pytest.mark.parametrize(
    ("model", "space", "members"),
    [pytest.param(*case, count) for case, count in QUICK.items()]
    + [pytest.param(*case, count, marks=pytest.mark.slow) for case, count in SLOW.items()],
)
@torch.inference_mode()
def test_a_member_equals_a_plain_model_with_its_perturbation_merged(model, space, members):
    section = beside_experts(model, SPACES[space])
    engine = inprocess(model, section)
    everyone = [*population(members).members, None]
    prompts = [engine.encoder.encode(example) for example in PROMPTS]
    found = engine.generate(everyone, PROMPTS, Decoding(NEW))
    for member, row in zip(everyone, found, strict=True):
        plain = merged(model, section, engine.weights, member)
        written = [list(completion.tokens) for completion in row]
        theirs = teacher_forced(partial(logits_of, plain), prompts, written)
        ours = teacher_forced(partial(engine.logits, member), prompts, written)
        for ids, expected, logits in zip(written, theirs, ours, strict=True):
            assert (logits - expected).abs().max() < ERROR
            # Every token the engine chose in its batch is the merged model's best, or a near tie.
            chosen = expected[torch.arange(len(ids)), torch.tensor(ids)]
            assert (expected.max(-1).values - chosen).max() < 2 * ERROR
        for ids, reference, expected in zip(written, greedy(plain, prompts), theirs, strict=True):
            if tuple(ids) != reference:
                pairs = zip(ids, reference, strict=False)
                place = next(i for i, (one, other) in enumerate(pairs) if one != other)
                first, second = expected[place].topk(2).values
                assert first - second < 2 * ERROR


@pytest.mark.parametrize(
    ("model", "space", "members_per_batch"),
    [
        ("qwen2", "rank 2", "auto"),
        ("llama", "full", 1),
        ("llama", "full", 4),
        ("gemma3", "lora", "auto"),
        ("gpt2", "rank 2", "auto"),
    ],
)
@torch.inference_mode()
def test_logits_are_those_of_the_merged_model(model, space, members_per_batch, monkeypatch):
    """Padding, the shared prefix and the cache included: what the tokens are chosen from."""
    engine = inprocess(model, SPACES[space], members_per_batch=members_per_batch)
    everyone = list(population(4).members)
    batch = [Example(i, f"What is the {one.prompt}", "", True) for i, one in enumerate(PROMPTS)] * 2
    prompts = [engine.encoder.encode(example) for example in batch]
    steps = []
    original = sampling.choose_tokens

    def listen(logits, *rest):
        steps.append(logits.clone())
        return original(logits, *rest)

    monkeypatch.setattr(decode, "choose_tokens", listen)
    monkeypatch.setattr(decode, "LEAVE_AT", 0)
    found = engine.generate(everyone, batch, Decoding(NEW))
    rounds = len(everyone) if members_per_batch == 1 else 1
    decoded = torch.cat([torch.stack(steps[i * NEW : (i + 1) * NEW], 1) for i in range(rounds)])
    decoded = decoded.view(len(everyone), len(batch), NEW, -1)
    for member, row, logits in zip(everyone, found, decoded, strict=True):
        plain = merged(model, SPACES[space], engine.weights, member)
        written = [list(completion.tokens) for completion in row]
        expected = teacher_forced(partial(logits_of, plain), prompts, written)
        for ours, theirs in zip(logits, expected, strict=True):
            assert (ours[: len(theirs)] - theirs).abs().max() < ERROR


# The mistakes of the field with weights and prompts, each with the number it has in our notes.


@pytest.mark.parametrize("space", ["full", "rank 1"])
def test_mistake_2_the_update_is_added_in_fp32_whatever_is_served(space):
    engine = inprocess("qwen2", SPACES[space], dtype="bfloat16")
    weights: Any = engine.weights
    before = bits(engine)
    # The settings of Qiu et al., and utilities of unit variance.
    coefficients = np.sin(np.arange(30) * 2.7) * np.sqrt(2) / 30
    update = Update(3, 0, 1e-3, 5e-4, tuple(coefficients.tolist()))
    intended = [weights.space.gradient(update, info) * 5e-4 for info in weights.searched]
    engine.apply(update)
    realized = [weights.tensors[info.name] - before[info.name] for info in weights.searched]
    one, other = (torch.cat([t.double().flatten() for t in all_]) for all_ in (intended, realized))
    # Added in bfloat16 it would be 0.98.
    assert torch.cosine_similarity(one, other, dim=0) > 0.9999


@pytest.mark.parametrize("space", ["full", "rank 1"])
@pytest.mark.parametrize("chat", [False, True])
def test_mistake_8_the_prompt_is_not_part_of_the_completion(space, chat):
    prompt = "Answer 1 + 2 in the form <answer>5</answer> fox"
    engine = inprocess("qwen2", SPACES[space])
    members = [*population(4).members, None]
    batch = examples([prompt, "Say <answer>7</answer>", "fox"], chat=chat)
    for row in engine.generate(members, batch, Decoding(NEW, stop=("</answer>",))):
        for example, completion in zip(batch, row, strict=True):
            assert "<answer>" not in completion.text
            assert example.prompt not in completion.text
            assert completion.finish != "stop"  # the stop string of the prompt stops nothing
            assert len(completion.tokens) <= NEW


@pytest.mark.parametrize("space", ["full", "rank 1", "rank 6"])
def test_mistake_19_the_update_uses_the_noise_members_played_redrawn_not_recovered(space):
    engine = inprocess("qwen2", SPACES[space])
    # So small that recovering the noise would lose its digits.
    member = SeedPerturbation(3, 0, 0, 1, 1e-5)
    ids = torch.arange(40)[None]
    moved = engine.logits(member, ids) - engine.logits(None, ids)
    assert float(moved.abs().max()) > 0
    before = bits(engine)
    engine.apply(Update(3, 0, 1e-5, 1.0, (1.0,)))
    for info in engine.weights.searched:
        noise = drawn(member, info, SPACES[space])
        start = before[info.name].double().numpy()
        found = engine.weights.tensors[info.name].double().numpy()
        assert np.linalg.norm(found - (start + noise)) < 1e-6 * np.linalg.norm(noise)
        recovered = ((start + 1e-5 * noise).astype(np.float32) - start.astype(np.float32)) / 1e-5
        assert np.linalg.norm(recovered - noise) > 1e-5 * np.linalg.norm(noise)


def test_mistake_19_a_dense_member_is_the_rounded_sum_of_center_and_redrawn_noise():
    engine = inprocess("qwen2", SPACES["full"], members_per_batch=1)
    member = SeedPerturbation(3, 0, 0, -1, 0.01)
    applied = []
    handle = engine.model.register_forward_hook(
        lambda *_: applied.append({n: t.clone() for n, t in engine.serving.items()})
    )
    engine.logits(member, torch.arange(20)[None])
    handle.remove()
    for info in engine.weights.searched:
        assert engine.weights.space is not None
        noise = engine.weights.space.gradient(Update(3, 0, 0.01, 1.0, (1.0,)), info)
        expected = engine.weights.tensors[info.name] + noise * -0.01
        assert torch.equal(applied[0][info.name], expected)


@pytest.mark.parametrize("space", ["full", "rank 1"])
def test_mistake_20_members_of_a_generation_have_the_same_prompts_and_the_same_luck(space):
    engine = inprocess("qwen2", SPACES[space])
    equal = [None, *(SeedPerturbation(3, 0, direction, 1, 0.0) for direction in range(6))]
    batch = examples() * 3
    batch = [Example(i, one.prompt, "", i % 2 == 0) for i, one in enumerate(batch)]
    decoding = Decoding(NEW, temperature=1.0, noise_seed=9)
    evaluation = evaluate_members(
        engine,
        GradedHere(NO_TASK),
        equal,
        batch,
        MicrobatchSettings(members=3, examples=8),
        decoding,
    )
    rows = np.array([str(one.completion) for one in evaluation.rollouts]).reshape(len(equal), -1)
    assert (rows == rows[0]).all()
    assert len(set(rows[0])) == len(batch)
    shown = [one.example for one in evaluation.rollouts]
    assert shown == [example.index for example in batch] * len(equal)
