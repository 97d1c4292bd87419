"""Conversations of several turns in vLLM and SGLang: what is sent, and what stays served."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from germline.config import load_config
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.engines.served_engine import Prompts, ServedEngine
from germline.optimizers import Sgd
from germline.protocols import Members
from germline.spaces import make_space
from germline.types import Decoding, Example
from tests import simulated_sglang, simulated_vllm
from tests.scripted_server import listening
from tests.simulated_sglang import EXAMPLES, MEMBERS, SimulatedSglang
from tests.simulated_vllm import SimulatedLlm
from tests.test_conversation import FIRST, talk
from tests.tiny_engines import SPACES, examples, folder, inprocess, population

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
