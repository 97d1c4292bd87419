"""Conversations of several turns: the cache is kept, and the tokens are those of the whole text."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from germline import noise
from germline.config import load_config
from germline.engines import decode
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.engines.prompt_batch import encode_answer
from germline.engines.sampling import choose_tokens
from germline.engines.served_engine import Prompts, ServedEngine
from germline.optimizers import Sgd
from germline.protocols import Members
from germline.spaces import make_space
from germline.types import Completion, Decoding, Example, GermlineError
from tests import simulated_sglang, simulated_vllm
from tests.scripted_server import listening
from tests.simulated_sglang import EXAMPLES, MEMBERS, SimulatedSglang
from tests.simulated_vllm import SimulatedLlm
from tests.tiny_engines import (
    SPACES,
    bits,
    engine,
    examples,
    folder,
    inprocess,
    population,
    same_bits,
)

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


pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

TURNS = 3


class ServedInProcess(ServedEngine):
    """An inference engine that continues token ids with an inprocess engine."""

    generator: InProcessEngine
    together: int
    groups: list[int]

    def close(self) -> None:
        """Do nothing."""

    def _served_at_once(self) -> int:
        return self.together

    def _kept_loaded(self, members: Members) -> AbstractContextManager[None]:
        self.groups.append(len(members))
        return nullcontext()

    def _generate_tokens(
        self, members: Members, prompts: Prompts, decoding: Decoding
    ) -> list[list[Sequence[int]]]:
        rows: list[list[Sequence[int]]] = []
        for member, own in zip(members, prompts, strict=True):
            texts = [
                Example(0, "", "", chat=False, token_ids=tuple(prompt.tokens)) for prompt in own
            ]
            written = self.generator.generate([member], texts, decoding) if texts else [[]]
            rows.append([completion.tokens for completion in written[0]])
        return rows

    def _score_tokens(self, *_: object) -> list[list[Sequence[float]]]:
        raise NotImplementedError

    def _write_weights(self, member: object) -> None:
        """Do nothing: the members of the generator are its own."""


@pytest.mark.parametrize("chat", [False, True])
def test_a_turn_sends_the_whole_text_so_far(chat):
    space = SPACES["rank 1"]
    config = load_config({"model": str(folder("qwen2")), "engine": {"kind": "inprocess"}})
    served = ServedInProcess(
        config, load_pretrained(str(folder("qwen2"))), make_space(space), Sgd()
    )
    served.generator, served.together, served.groups = inprocess("qwen2", space), 2, []
    members = (*population(4).members, None)
    batch = examples(FIRST, chat=chat)
    rows = [batch[: 4 - number % 3] for number in range(5)]
    greedy = Decoding(max_new_tokens=7)

    def ends(member: int, row: int, turn: int) -> bool:
        return (member + row) % 3 == turn

    said = talk(served, members, rows, greedy, ends=ends)
    assert said == talk(inprocess("qwen2", space), members, rows, greedy, ends=ends)
    assert served.groups == [2, 2, 1]


def converse(engine: Any, members: Members) -> None:
    turns: dict[tuple[int, int], int] = {}

    def reply(places: Sequence[tuple[int, int]], _written: object) -> list[str | None]:
        for place in places:
            turns[place] = turns.get(place, 0) + 1
        return [None if turns[place] == TURNS else "go on" for place in places]

    engine.converse(members, [EXAMPLES] * len(members), Decoding(max_new_tokens=4), reply)
    assert set(turns.values()) == {TURNS}


def test_sglang_keeps_the_adapters_of_a_conversation_loaded():
    simulated = SimulatedSglang()
    with listening(simulated.reply) as script, simulated_sglang.opened(script) as engine:
        converse(engine, MEMBERS)
        assert len(script.bodies("/load_lora_adapter_from_tensors")) == len(MEMBERS)
        assert len(script.bodies("/generate")) >= TURNS
        assert simulated.loaded == []


def test_sglang_loads_adapters_again_that_a_restarted_server_has_lost():
    simulated = SimulatedSglang()
    with listening(simulated.reply) as script, simulated_sglang.opened(script) as engine:
        generate = simulated.generate
        lost: list[list[str]] = []

        def restart(body: Any) -> tuple[int, Any]:
            if len(lost) < 1 and len(script.bodies("/generate")) > 1:
                lost.append(simulated.loaded[:])
                simulated.loaded.clear()
            return generate(body)

        simulated.generate = restart  # type: ignore[method-assign]
        simulated.unload_lora_adapter = lambda body: (  # type: ignore[method-assign]
            200,
            {"success": body["lora_name"] in simulated.loaded},
        )
        converse(engine, MEMBERS)
        assert lost
        assert lost[0]


def test_vllm_writes_each_member_once_and_keeps_its_prefix_cache():
    simulated = SimulatedLlm()
    with simulated_vllm.opened(simulated, "full") as engine:
        start, emptied = len(simulated.written), simulated.emptied
        converse(engine, MEMBERS)
        written = [member for member in simulated.written[start:] if member is not None]
        assert written == list(MEMBERS)
        assert simulated.emptied - emptied == len(MEMBERS)


def test_vllm_names_the_adapters_of_a_conversation_once():
    simulated = SimulatedLlm()
    with simulated_vllm.opened(simulated) as engine:
        converse(engine, [*MEMBERS, None])
        assert len(simulated.members) == len(MEMBERS) + 1
    name = simulated.requests[0].adapter
    lengths = [len(one.tokens) for one in simulated.requests if one.adapter == name]
    assert len(lengths) == TURNS * len(EXAMPLES)
    assert lengths[:: len(EXAMPLES)] == sorted(set(lengths[:: len(EXAMPLES)]))
