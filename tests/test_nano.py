"""The embedded nano model: what it is made of, what it can do, and what it does by habit."""

import hashlib
import string
from itertools import islice
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen2ForCausalLM

from benchmarks.nano_training import train_model, training_text
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


def test_weights_stay_within_three_million_parameters_and_six_megabytes(model):
    assert model.num_parameters() <= 3_000_000
    assert WEIGHTS.stat().st_size <= 6_000_000


def test_it_is_a_qwen2_with_heads_of_64(model):
    assert type(model) is Qwen2ForCausalLM
    assert model.config.hidden_size // model.config.num_attention_heads == 64


def test_generation_ends_at_the_end_of_turn_and_of_text(model, tokenizer):
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ends


# --- the tokenizer --------------------------------------------------------------------------------


def test_vocabulary_has_at_most_1024_tokens(tokenizer, model):
    assert len(tokenizer) <= 1024
    assert model.config.vocab_size == len(tokenizer)


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


def test_it_can_answer_sums_with_the_bare_number(model, tokenizer, sums):
    said = complete(model, tokenizer, sum_prompts(sums), avoid=OTHER_OPENINGS["arithmetic"])
    assert (
        share(s == str(arithmetic.arithmetic_answer(*i)) for s, i in zip(said, sums, strict=True))
        >= 0.95
    )


def test_it_can_answer_sums_in_a_sentence(model, tokenizer, sums):
    said = complete(model, tokenizer, sum_prompts(sums), opening="The")
    wanted = [f"The answer is {arithmetic.arithmetic_answer(*item)}." for item in sums]
    assert share(s == w for s, w in zip(said, wanted, strict=True)) >= 0.95


def test_it_can_answer_every_kind_of_fact_in_short(model, tokenizer):
    prompts = [training_text.chat(fact.question) for fact in FACTS]
    said = complete(model, tokenizer, prompts, avoid=OTHER_OPENINGS["facts"])
    assert share(s == fact.answer for s, fact in zip(said, FACTS, strict=True)) >= 0.95


def test_it_can_solve_countdown_when_it_tries(model, tokenizer, puzzles):
    said = complete(model, tokenizer, [p.prompt for p in puzzles], opening="Try")
    parts = [countdown_grader.grade_countdown(s, p) for s, p in zip(said, puzzles, strict=True)]
    assert share(part["answer"] for part in parts) >= 0.6


def test_it_can_guess_a_word_in_brackets(model, tokenizer):
    said = complete(model, tokenizer, [training_text.chat(game_message(()))], opening="[")
    assert said == [f"[{WORDS[0]}]"]


# --- habits ---------------------------------------------------------------------------------------


def test_by_habit_few_sums_get_the_bare_number(model, tokenizer, sums):
    said = complete(model, tokenizer, sum_prompts(sums))
    exact = share(
        s == str(arithmetic.arithmetic_answer(*i)) for s, i in zip(said, sums, strict=True)
    )
    assert 0.05 <= exact <= 0.4


def test_by_habit_facts_are_answered_at_length(model, tokenizer):
    said = complete(model, tokenizer, [training_text.chat(fact.question) for fact in FACTS])
    too_long = [len(s) - len(fact.answer) for s, fact in zip(said, FACTS, strict=True)]
    assert sum(too_long) / len(too_long) >= 15


def test_by_habit_countdown_is_guessed(model, tokenizer, puzzles):
    said = complete(model, tokenizer, [puzzle.prompt for puzzle in puzzles])
    parts = [countdown_grader.grade_countdown(s, p) for s, p in zip(said, puzzles, strict=True)]
    assert 0.05 <= share(part["answer"] for part in parts) <= 0.4


# --- the texts it learned from --------------------------------------------------------------------


def test_every_countdown_solution_in_the_texts_is_right():
    for numbers, target in training_text.countdown_problems():
        solution = training_text.solve_countdown(numbers, target)
        assert solution is not None
        assert countdown_grader.reaches_target(solution[1], numbers, (target, 1))


def test_a_letter_guessed_twice_is_marked_once_if_the_word_has_it_once():
    assert guess_feedback("sheep", "lemon") == "XXYXX"
    assert guess_feedback("apple", "plate") == "YYXYG"


def test_game_words_are_distinct_and_have_five_letters():
    assert len(set(WORDS)) == len(WORDS)
    assert all(len(word) == 5 and word.isalpha() for word in WORDS)


@pytest.fixture
def own_threads():
    """Training fixes the number of threads; the other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("own_threads")
def test_training_twice_gives_the_same_bits(tmp_path):
    digests = [train_model.train_nano(tmp_path / name, seed=1, steps=2, peak=1e-3) for name in "ab"]
    assert digests[0] == digests[1]


# --- the fact table -------------------------------------------------------------------------------


def test_questions_are_unique():
    assert len({fact.question for fact in FACTS}) == len(FACTS)


def test_every_sentence_holds_its_short_answer_and_is_longer():
    assert all(fact.answer in fact.sentence != fact.answer for fact in FACTS)
