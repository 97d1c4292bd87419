"""The embedded nano model, whose digest pins what it can do; its tokenizer and its facts."""

import hashlib
import string
from itertools import islice
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from benchmarks.nano_training import training_text
from germline import nano
from germline.tasks.conciseness import FACTS
from germline.tasks.countdown import countdown_prompt

WEIGHTS = nano.NANO_DIR / "model.safetensors"


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(nano.NANO_DIR, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(nano.NANO_DIR)


def test_shipped_weights_have_the_recorded_digest():
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() == nano.WEIGHTS_SHA256


def test_it_is_a_small_qwen2_that_ends_at_the_end_of_turn_and_of_text(model, tokenizer):
    assert type(model) is Qwen2ForCausalLM
    assert model.num_parameters() <= 3_000_000
    assert model.config.hidden_size // model.config.num_attention_heads == 64
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ends
    assert model.config.vocab_size == len(tokenizer) <= 1024


@pytest.mark.parametrize(
    "any_text",
    [
        "héllo\n\n  wörld 日本 12+34 -5 </think> <answer>",
        "  a  \t b",
        "x+y = 3*(4/2)",
        countdown_prompt((3, 5, 2), "13"),
        "\N{GRINNING FACE} \x00 ~`|",
    ],
)
def test_any_text_survives_encoding_and_decoding(tokenizer, any_text):
    assert tokenizer.decode(tokenizer(any_text).input_ids) == any_text


def test_digits_and_operators_never_merge_with_anything(tokenizer):
    added = set(tokenizer.get_added_vocab())
    for token in set(tokenizer.get_vocab()) - added:
        if any(sign in token for sign in string.digits + "+-*/="):
            assert len(token.replace("Ġ", "")) == 1, token


def test_chat_template_writes_the_prompt_it_was_trained_on(tokenizer):
    messages = [{"role": "user", "content": "What is 3 + 5?"}]
    written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert written == training_text.chat("What is 3 + 5?")


def test_a_completion_has_the_same_tokens_alone_and_after_its_prompt(tokenizer):
    for skill in training_text.SKILLS.values():
        for sample in islice(skill.samples(Random(11)), 50):
            apart = tokenizer(sample.prompt).input_ids + tokenizer(sample.completion).input_ids
            assert tokenizer(sample.prompt + sample.completion).input_ids == apart


def test_facts_are_unique_and_hold_their_short_answer():
    assert len({fact.question for fact in FACTS}) == len(FACTS)
    assert all(fact.answer in fact.sentence != fact.answer for fact in FACTS)
