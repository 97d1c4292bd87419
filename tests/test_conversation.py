"""Conversations of several turns: the cache is kept, and the tokens are those of the whole text."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from germline import noise
from germline.engines import decode
from germline.engines.inprocess import InProcessEngine
from germline.engines.prompt_batch import encode_answer
from germline.engines.sampling import choose_tokens
from germline.types import Completion, Decoding, Example, GermlineError
from tests.tiny_engines import SPACES, bits, engine, examples, inprocess, population, same_bits

GREEDY = Decoding(max_new_tokens=7)
FIRST = ("What is 1 + 2?", "Say something short.", "fox", "Guess the number, please. It is below 9")
ANSWERS = (" no, try again", " higher", " a longer message that says more than the others do", "x")


def talk(engine, members, rows, decoding=GREEDY, turns=4, ends=lambda member, row, turn: False):
    """Hold conversations with fixed answers; return `[(turn completions, answers)]` by place."""
    said: dict[tuple[int, int], tuple[list[Completion], list[str]]] = {}

    def reply(places, completions):
        answers = []
        for place, completion in zip(places, completions, strict=True):
            written, sent = said.setdefault(place, ([], []))
            written.append(completion)
            turn = len(written)
            over = turn == turns or completion.finish == "context" or ends(*place, turn)
            message = ANSWERS[(place[1] + turn) % len(ANSWERS)]
            answers.append(None if over else message)
            sent += [] if over else [message]
        return answers

    engine.converse(members, rows, decoding, reply)
    return said


def stream(engine, example, written, sent):
    """Return all tokens of a conversation, and the positions of those the model wrote."""
    tokens = list(engine.encoder.encode(example))
    mine: list[int] = []
    for turn, completion in enumerate(written):
        mine += range(len(tokens), len(tokens) + len(completion.tokens))
        tokens += completion.tokens
        if turn < len(sent):
            tokens += engine.encoder.encode_answer(example, completion, sent[turn])
    return tokens, mine


def assert_greedy(engine, members, rows, said):
    """Every token is the most likely one after the whole text before it, up to rounding."""
    assert set(said) == {(m, r) for m, row in enumerate(rows) for r in range(len(row))}
    for (member, row), (written, sent) in said.items():
        tokens, mine = stream(engine, rows[member][row], written, sent)
        with torch.inference_mode():
            logits = engine.logits(members[member], torch.tensor([tokens]))[0]
        for place in mine:
            before = logits[place - 1]
            assert before[tokens[place]] >= before.max() - 1e-3


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("space", ["rank 1", "lora", "full", "subspace"])
def test_every_turn_has_the_tokens_of_the_whole_text(space, chat):
    made = inprocess("qwen2", SPACES[space])
    members, before = (*population(4).members, None), bits(made)
    batch = [replace(one, chat=chat) for one in examples(FIRST)]
    # Rows of different members differ in number and order, and end after different turns.
    rows = [batch[: 4 - number % 3][:: 1 if number % 2 else -1] for number in range(len(members))]
    said = talk(made, members, rows, ends=lambda m, r, turn: (m + 2 * r) % 4 == turn)
    assert {len(written) for written, _ in said.values()} == {1, 2, 3, 4}
    assert same_bits(bits(made), before)
    assert_greedy(made, members, rows, said)


@pytest.mark.parametrize("model", ["gemma3", "mistral", "llama", "gpt2"])
def test_windows_and_learned_positions_keep_their_cache(model):
    made = inprocess(model, SPACES["full"])
    rows = [examples(FIRST)] * 2
    members = population(2).members
    said = talk(made, members, rows, turns=5)
    assert_greedy(made, members, rows, said)


@contextmanager
def shapes_read(made: InProcessEngine) -> Iterator[list[torch.Size]]:
    """Collect the shapes `[rows, tokens]` that a model reads."""
    shapes: list[torch.Size] = []
    handle = made.model.register_forward_hook(
        lambda _m, _a, kwargs, _o: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    yield shapes
    handle.remove()


def test_a_turn_reads_the_answer_alone():
    made = inprocess("qwen2", SPACES["rank 1"])
    rows = [examples(["the same prompt of a few words and more"] * 4)] * 4
    with shapes_read(made) as shapes:
        said = talk(made, population(4).members, rows, turns=3)
    longest = max(
        len(made.encoder.encode_answer(rows[0][0], written[0], sent))
        for written, answers in said.values()
        for sent in answers
    )
    after_prompt = [width for _, width in shapes if width > 1][-2:]
    assert len(after_prompt) == 2
    assert all(width <= longest + 1 for width in after_prompt)


def test_rows_of_ended_conversations_leave_the_batch():
    made = inprocess("qwen2", SPACES["rank 1"])
    rows = [examples(["one prompt"] * 12)] * 6
    with shapes_read(made) as shapes:
        talk(made, population(6).members, rows, ends=lambda m, r, turn: m > 1 or r > 7)
    sizes = [size for size, _ in shapes]
    assert sizes[0] in (6, 72)  # the shared prefix, once per member, or all rows
    assert set(sizes[-5:]) == {decode.SMALLEST_BATCH}


@pytest.mark.parametrize("samples", [1, 4])
def test_one_turn_is_what_generate_writes(samples):
    made = inprocess("qwen2", SPACES["rank 1"])
    members = (*population(6).members, None)
    sampled = Decoding(max_new_tokens=12, temperature=1.0, noise_seed=3)
    rows = [replace(one, sample=n) for n in range(samples) for one in examples(FIRST)]
    alone = made.generate(members, rows, sampled)
    assert len({one.tokens for one in alone[0]}) == len(rows)
    said = talk(made, members, [rows] * len(members), sampled, turns=1)
    assert {place: written for place, (written, _) in said.items()} == {
        (m, r): [completion] for m, row in enumerate(alone) for r, completion in enumerate(row)
    }


def test_turns_have_sampling_noise_of_their_own_and_members_share_it(monkeypatch):
    made = inprocess("qwen2", SPACES["rank 1"])
    hot = Decoding(max_new_tokens=8, temperature=3.0, noise_seed=3)
    used = []

    def listen(logits, sampling_noise, decoding):
        used.append(sampling_noise)
        return choose_tokens(logits, sampling_noise, decoding)

    monkeypatch.setattr(decode, "choose_tokens", listen)
    twice = talk(made, [None, None], [examples(FIRST)] * 2, hot, turns=2)
    for row in range(len(FIRST)):
        assert twice[0, row] == twice[1, row]
    drawn = noise.sampling_uniforms(3, 0, "train", range(4), 16)
    assert len(used) == 16
    for step, uniforms in enumerate(used):
        assert uniforms[:4].tolist() == drawn[:, step].tolist()


def test_a_conversation_without_room_ends_and_the_others_go_on(tmp_path):
    made = inprocess("qwen2", SPACES["rank 1"])
    made.encoder.context_tokens = 90
    batch = examples(["x", "a much longer prompt that fills the context: " + "word " * 4])
    said = talk(made, [None], [batch], turns=4)
    short, long = said[0, 0][0], said[0, 1][0]
    assert [one.finish for one in long][-1] == "context"
    assert (long[-1].tokens, long[-1].text) == ((), "")
    assert len(short) > len(long)


def test_the_answer_continues_the_chat_template():
    made = inprocess("qwen2", SPACES["rank 1"])
    tokenizer = made.pretrained.tokenizer
    whole = tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "Guess."},
            {"role": "assistant", "content": "seven"},
            {"role": "user", "content": "higher"},
        ],
        add_generation_prompt=True,
        tokenize=False,
    )
    told = tokenizer.decode(encode_answer(tokenizer, "higher", chat=True, after=""))
    assert whole.endswith("seven" + told)
    end = tokenizer.eos_token
    assert told.startswith(end)
    after_end = tokenizer.decode(encode_answer(tokenizer, "higher", chat=True, after=end))
    assert end + after_end == told


def test_a_template_that_drops_earlier_turns_is_refused():
    made = inprocess("qwen2", SPACES["rank 1"])
    tokenizer = made.pretrained.tokenizer
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    with pytest.raises(GermlineError, match="leaves out earlier messages of the assistant"):
        encode_answer(tokenizer, "higher", chat=True, after="")


def test_the_toy_engine_continues_the_text(tmp_path):
    toy = engine("toy", SPACES["rank 1"])
    said = talk(toy, [*population(2).members, None], [examples(FIRST)] * 3, turns=3)
    (first, second, _), (answer, _) = said[1, 2]
    text = FIRST[2] + first.text + answer
    member = population(2).members[1]
    assert toy.generate([member], [Example(2, text, "", chat=False)], GREEDY)[0][0] == second
