"""Exactness: members equal merged models, and the field's mistakes with weights stay out."""

from concurrent.futures import Future
from functools import partial

import numpy as np
import pytest
import torch

from germline.config import MicrobatchSettings
from germline.engines import decode, sampling
from germline.rollout import evaluate_members
from germline.types import Decoding, Example, Grade, SeedPerturbation, TensorInfo, Update
from tests import merged_models
from tests.merged_models import teacher_forced
from tests.tiny_engines import (
    SPACES,
    beside_experts,
    bits,
    drawn,
    examples,
    folder,
    gradient,
    inprocess,
    played,
    population,
    same_bits,
    tokens,
)

ERROR = 1e-4
"""How far a member's logits may be from those of the merged model, in fp32."""

CASES = [
    ("qwen2", "full", 8),
    ("llama", "full", 10),
    ("qwen2 of few words", "full", 8),
    ("qwen2", "rank 1", 8),
    ("qwen2 of few words", "rank 1", 16),
    ("llama", "rank 1", 14),
    ("qwen2", "rank 6", 10),
    ("llama", "rank 2", 10),
    ("gpt2", "full", 2),
    ("gpt2", "rank 1", 4),
    ("gpt2", "rank 6", 4),
    ("gpt2", "lora", 4),
    ("mistral", "full", 2),
    ("mistral", "rank 2", 4),
    ("mistral", "lora", 4),
    ("gemma3", "full", 2),
    ("gemma3", "rank 1", 4),
    ("gemma3", "lora", 4),
    ("qwen2", "lora", 6),
    ("qwen2 of few words", "lora", 6),
    ("llama", "lora of rank 6", 4),
    ("qwen2 of few words", "subspace", 4),
    ("gpt2", "subspace", 2),
    ("llama", "singular", 2),
    ("gpt2", "singular", 2),
    ("mixtral", "full", 2),
    ("mixtral", "rank 1", 4),
    ("mixtral", "lora", 2),
    ("qwen2_moe", "rank 2", 4),
    ("qwen3_moe", "rank 1", 4),
    ("qwen3_moe", "lora", 2),
    ("qwen3_moe", "full", 2),
    ("phi3", "rank 1", 2),
    ("olmo2", "rank 1", 2),
    ("gemma2", "rank 1", 2),
    ("smollm3", "rank 1", 2),
]
"""Model, space, members."""

FURTHER = {
    ("llama", "full"),
    ("llama", "rank 2"),
    ("qwen2 of few words", "rank 1"),
    ("qwen2 of few words", "lora"),
    ("gpt2", "rank 6"),
    ("gpt2", "lora"),
    ("gpt2", "subspace"),
    ("mistral", "full"),
    ("gemma3", "full"),
    ("mixtral", "lora"),
    ("qwen3_moe", "lora"),
}
"""Slow: the model and the space have quick cases, of other spaces and other models."""

WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps.",
    "The",
    "answer",
    "is",
    "3.",
    "What",
    "is",
    "1",
    "+",
)
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


def test_the_comparison_with_transformers_covers_a_thousand_sequences():
    assert sum(members + 1 for *_, members in CASES) * len(PROMPTS) >= 1000
    assert len({(example.prompt, example.chat) for example in PROMPTS}) == len(PROMPTS)


def test_every_model_and_every_space_has_a_quick_case():
    quick = [case for case in CASES if case[:2] not in FURTHER]
    for place in (0, 1):
        assert {case[place] for case in quick} == {case[place] for case in CASES}


@pytest.mark.parametrize(
    ("model", "space", "members"),
    [pytest.param(*case, marks=pytest.mark.slow if case[:2] in FURTHER else ()) for case in CASES],
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
def test_logits_while_decoding_equal_those_of_the_merged_model(
    model, space, members_per_batch, monkeypatch
):
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


def norm(tensors):
    return float(np.sqrt(sum(float((t.double() ** 2).sum()) for t in tensors)))


def cosine(left, right):
    dot = sum(float((a.double() * b.double()).sum()) for a, b in zip(left, right, strict=True))
    return dot / (norm(left) * norm(right))


SIGMA, LEARNING_RATE, MEMBERS = 1e-3, 5e-4, 30
"""The settings of Qiu et al."""


def paper_update():
    """One generation with the settings of Qiu et al. and utilities of unit variance."""
    count = MEMBERS
    coefficients = np.sin(np.arange(count) * 2.7) * np.sqrt(2) / count
    return Update(3, 0, SIGMA, LEARNING_RATE, tuple(coefficients.tolist()))


def test_mistake_1_weights_are_not_restored_by_subtracting_noise_in_half_precision():
    engine = inprocess("qwen2", SPACES["full"], dtype="bfloat16")
    members = population(MEMBERS, SIGMA).seed_perturbations()
    before = bits(engine)
    subtracted = {name: tensor.clone() for name, tensor in engine.serving.items()}
    for member in members:
        for info in engine.weights.searched:
            noise = played(engine, member, info).bfloat16() * (member.sign * SIGMA)
            subtracted[info.name].add_(noise)
            subtracted[info.name].sub_(noise)
    engine.generate(members, examples(), Decoding(2))
    assert same_bits(before, bits(engine))
    step = [
        gradient(engine, paper_update(), info) * LEARNING_RATE for info in engine.weights.searched
    ]
    drift = [
        subtracted[info.name].float() - before[f"serving {info.name}"].float()
        for info in engine.weights.searched
    ]
    assert norm(drift) > 0.5 * norm(step)  # the field's way, in one generation


@pytest.mark.parametrize("space", ["full", "rank 1"])
def test_mistake_2_the_update_is_added_in_fp32_whatever_is_served(space):
    engine = inprocess("qwen2", SPACES[space], dtype="bfloat16")
    before = bits(engine)
    intended, rounded = [], []
    for info in engine.weights.searched:
        step = gradient(engine, paper_update(), info) * LEARNING_RATE
        serving = before[f"serving {info.name}"]
        intended.append(step)
        rounded.append((serving + step.bfloat16()).float() - serving.float())
    engine.apply(paper_update())
    realized = [
        engine.weights.tensors[info.name] - before[info.name] for info in engine.weights.searched
    ]
    assert cosine(realized, intended) > 0.9999
    assert cosine(rounded, intended) < 0.98  # the field's way


@pytest.mark.parametrize("space", ["full", "rank 1", "rank 6"])
def test_mistake_3_tensors_of_the_same_shape_get_noise_of_their_own(space):
    engine = inprocess("llama", SPACES[space])
    member = population(2).seed_perturbations()[0]
    update = Update(3, 0, 0.02, 1.0, (1.0,))
    before = bits(engine)
    engine.apply(update)
    shapes: dict[tuple[int, ...], list[TensorInfo]] = {}
    for info in engine.weights.searched:
        shapes.setdefault(info.shape, []).append(info)
    twins = [infos[:4] for infos in shapes.values() if len(infos) > 1 and len(infos[0].shape) > 1]
    assert len(twins) >= 3
    for infos in twins:
        moved = [engine.weights.tensors[i.name] - before[i.name] for i in infos]
        stood = [played(engine, member, i) for i in infos]
        for noises in (moved, stood):
            flat = torch.stack([noise.flatten().double() for noise in noises])
            off_diagonal = torch.corrcoef(flat) - torch.eye(len(flat))
            assert off_diagonal.abs().max() < 0.2


class FloorForAll:
    """Grades at once, in this process: these tests look at completions."""

    max_turns: int | None = None

    def submit(self, texts, examples):
        done: Future[list[Grade]] = Future()
        done.set_result([Grade(0.0, {}) for _ in texts])
        return done


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
    member = SeedPerturbation(
        3, 0, 0, 1, 1e-5
    )  # so small that recovering the noise would lose its digits
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
        noise = gradient(engine, Update(3, 0, 0.01, 1.0, (1.0,)), info)
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
        engine, FloorForAll(), equal, batch, MicrobatchSettings(members=3, examples=8), decoding
    )
    rows = np.array([str(one.completion) for one in evaluation.rollouts]).reshape(len(equal), -1)
    assert (rows == rows[0]).all()
    assert len(set(rows[0])) == len(batch)
    shown = [one.example for one in evaluation.rollouts]
    assert shown == [example.index for example in batch] * len(equal)


def test_evaluating_before_the_update_changes_nothing_after_it():
    evaluated, untouched = (inprocess("llama", SPACES["full"], dtype="bfloat16") for _ in range(2))
    evaluated.generate(population(10).members, examples(), Decoding(2))
    for one in (evaluated, untouched):
        one.apply(paper_update())
    assert same_bits(bits(evaluated), bits(untouched))
    assert tokens(evaluated.generate([None], examples(), Decoding(NEW))) == tokens(
        untouched.generate([None], examples(), Decoding(NEW))
    )
