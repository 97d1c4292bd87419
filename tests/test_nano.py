"""The embedded nano model: what it is made of, what it can do, and what it does by habit."""

import hashlib
import string
from itertools import islice
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen2ForCausalLM

from benchmarks.nano_training import training_text
from germline import nano
from germline.environments.wordle import WORDS, game_message, guess_feedback
from germline.graders import countdown as countdown_grader
from germline.tasks import arithmetic
from germline.tasks.conciseness import FACTS
from germline.tasks.countdown import countdown_prompt, small_rows
from germline.types import Example

WEIGHTS = nano.NANO_DIR / "model.safetensors"
OTHER_OPENINGS = {"arithmetic": ("The", "Let", "I"), "facts": ("The", "That", "Well")}


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(nano.NANO_DIR, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(nano.NANO_DIR)


@pytest.fixture(scope="module")
def sums():
    """120 sums of the task: (a, operator, b)."""
    random = Random(3)
    every = [
        (a, sign, b)
        for sign, largest in arithmetic.LARGEST_OPERAND.items()
        for a in range(largest + 1)
        for b in range(largest + 1)
    ]
    return random.sample(every, 120)


@pytest.fixture(scope="module")
def puzzles():
    """120 countdown examples."""
    rows = small_rows(5, 120)
    return [
        Example(
            index=index,
            prompt=row["context"],
            answer="",
            chat=False,
            facts={"numbers": tuple(row["numbers"]), "target": row["target"]},
        )
        for index, row in enumerate(rows)
    ]


def complete(model, tokenizer, prompts, opening="", avoid=()):
    """Decode greedily; `opening` forces the first words, `avoid` forbids the first tokens."""
    inputs = tokenizer([prompt + opening for prompt in prompts], return_tensors="pt", padding=True)
    settings = GenerationConfig(
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=model.generation_config.pad_token_id,
        begin_suppress_tokens=[tokenizer(word).input_ids[0] for word in avoid] or None,
    )
    out = model.generate(**inputs, generation_config=settings)
    written = out[:, inputs.input_ids.shape[1] :]
    return [opening + tokenizer.decode(row, skip_special_tokens=True) for row in written]


def share(claims):
    claims = list(claims)
    return sum(claims) / len(claims)


def sum_prompts(sums):
    return [training_text.chat(arithmetic.arithmetic_question(*item)) for item in sums]


# --- what it is made of ---------------------------------------------------------------------------


def test_shipped_weights_have_the_recorded_digest():
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() == nano.WEIGHTS_SHA256


def test_it_is_a_small_qwen2_with_heads_of_64_that_ends_at_the_end_of_turn_and_of_text(
    model, tokenizer
):
    assert type(model) is Qwen2ForCausalLM
    assert model.num_parameters() <= 3_000_000
    assert model.config.hidden_size // model.config.num_attention_heads == 64
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ends
    assert model.config.vocab_size == len(tokenizer) <= 1024


# --- the tokenizer --------------------------------------------------------------------------------


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


def test_countdown_prompts_are_a_dozen_tokens(tokenizer):
    assert len(tokenizer(countdown_prompt((3, 5, 2), "13")).input_ids) <= 12


def test_chat_template_writes_the_prompt_it_was_trained_on(tokenizer):
    messages = [{"role": "user", "content": "What is 3 + 5?"}]
    written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert written == training_text.chat("What is 3 + 5?")


def test_a_completion_has_the_same_tokens_alone_and_after_its_prompt(tokenizer):
    for skill in training_text.SKILLS.values():
        for sample in islice(skill.samples(Random(11)), 50):
            apart = tokenizer(sample.prompt).input_ids + tokenizer(sample.completion).input_ids
            assert tokenizer(sample.prompt + sample.completion).input_ids == apart


# --- abilities, in each style ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "wanted", "low", "high"),
    [
        ({"avoid": OTHER_OPENINGS["arithmetic"]}, "{}", 0.95, 1.0),
        ({"opening": "The"}, "The answer is {}.", 0.95, 1.0),
        ({}, "{}", 0.05, 0.4),  # by habit, few sums get the bare number
    ],
)
def test_it_can_answer_sums_with_the_bare_number_and_rarely_does(
    model, tokenizer, sums, style, wanted, low, high
):
    said = complete(model, tokenizer, sum_prompts(sums), **style)
    right = [wanted.format(arithmetic.arithmetic_answer(*item)) for item in sums]
    assert low <= share(s == w for s, w in zip(said, right, strict=True)) <= high


def test_it_can_answer_every_kind_of_fact_in_short(model, tokenizer):
    prompts = [training_text.chat(fact.question) for fact in FACTS]
    said = complete(model, tokenizer, prompts, avoid=OTHER_OPENINGS["facts"])
    assert share(s == fact.answer for s, fact in zip(said, FACTS, strict=True)) >= 0.95


@pytest.mark.parametrize(("opening", "low", "high"), [("Try", 0.6, 1.0), ("", 0.05, 0.4)])
def test_it_can_solve_countdown_when_it_tries_and_guesses_by_habit(
    model, tokenizer, puzzles, opening, low, high
):
    said = complete(model, tokenizer, [p.prompt for p in puzzles], opening=opening)
    parts = [countdown_grader.grade_countdown(s, p) for s, p in zip(said, puzzles, strict=True)]
    assert low <= share(part["answer"] for part in parts) <= high


def test_it_can_guess_a_word_in_brackets(model, tokenizer):
    said = complete(model, tokenizer, [training_text.chat(game_message(()))], opening="[")
    assert said == [f"[{WORDS[0]}]"]


def test_by_habit_facts_are_answered_at_length(model, tokenizer):
    said = complete(model, tokenizer, [training_text.chat(fact.question) for fact in FACTS])
    too_long = [len(s) - len(fact.answer) for s, fact in zip(said, FACTS, strict=True)]
    assert sum(too_long) / len(too_long) >= 15


# --- its tasks -----------------------------------------------------------------------------------


def test_a_letter_guessed_twice_is_marked_once_if_the_word_has_it_once():
    assert guess_feedback("sheep", "lemon") == "XXYXX"
    assert guess_feedback("apple", "plate") == "YYXYG"


def test_game_words_are_distinct_and_have_five_letters():
    assert len(set(WORDS)) == len(WORDS)
    assert all(len(word) == 5 and word.isalpha() for word in WORDS)


def test_facts_are_unique_and_hold_their_short_answer():
    assert len({fact.question for fact in FACTS}) == len(FACTS)
    assert all(fact.answer in fact.sentence != fact.answer for fact in FACTS)
