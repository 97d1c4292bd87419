"""The engine vllm against a script of an OpenAI server: what is sent, and what is not believed.

That members play right is tested with the real server, in tests/engines_real.
"""

import base64
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from safetensors.torch import load

from germline.config import Config, load_config
from germline.engines.master_weights import Masters
from germline.engines.served.masters_spec import masters_from_spec
from germline.engines.served.serialization import read_members, read_update
from germline.run.build_parts import make_engine
from germline.types import Decoding, EngineLost, Example, GermlineError, SeedPerturbation, Update
from tests.scripted_server import Scripted, listening
from tests.tiny_engines import folder

MEMBERS = [SeedPerturbation(7, 0, of, sign, 0.02) for of in (0, 1) for sign in (1, -1)]
EXAMPLES = [Example(k, f"What is {k} + 4?", "", chat=True) for k in range(3)]
GREEDY = Decoding(max_new_tokens=4)
UPDATE = Update(7, 0, 0.02, 0.5, (0.3, -0.2))


@dataclass
class Pretended:
    """As much of vLLM, and of germline's part in its worker, as a test needs."""

    model: str = ""
    masters: Masters | None = None
    run: str = ""
    updates: int = 0
    members: dict[str, Any] = field(default_factory=dict)
    stood: list[Any] = field(default_factory=list)
    received: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    instead: dict[str, Any] = field(default_factory=dict)

    def reply(self, path: str, body: Any) -> tuple[int, Any]:
        """Answer as vLLM 0.32 does."""
        if path in self.instead:
            answer = self.instead[path]
            return answer(body) if callable(answer) else answer
        return getattr(self, path.rpartition("/")[2])(body)

    def models(self, _body: Any) -> tuple[int, Any]:
        adapters = [{"id": name, "parent": "served"} for name in self.members]
        return 200, {"data": [{"id": "served", "parent": None}, *adapters]}

    def collective_rpc(self, body: Any) -> tuple[int, Any]:
        run, verb, *texts = body["args"]
        if verb in ("describe", "build"):
            self.run = run
        if run != self.run:
            return 200, {"results": [{"lost": "vLLM was started anew"}]}
        return 200, {"results": [getattr(self, verb)(*texts) or {}]}

    def describe(self) -> dict[str, Any]:
        return {"dtype": "float32", "max_loras": 2, "max_lora_rank": 8, **self.about}

    def build(self, recipe: str) -> dict[str, str]:
        self.masters = masters_from_spec(recipe, self.model)
        return {"base": self.masters.base.digest(), "model": self.model}

    def digest(self) -> dict[str, str]:
        assert self.masters is not None
        return {"masters": self.masters.digest()}

    def apply(self, number: str, update: str) -> dict[str, str]:
        assert self.masters is not None
        if int(number) > self.updates:
            self.masters.apply(read_update(update))
        self.updates = int(number)
        return self.digest()

    def receive(self, name: str, tensor: str) -> None:
        self.received[name] = load(base64.b64decode(tensor))[name]

    def restore(self) -> dict[str, str]:
        assert self.masters is not None
        self.masters.load_state(self.received)
        return self.digest()

    def register(self, members: str) -> None:
        self.members |= read_members(members)

    def clear(self) -> None:
        self.members.clear()

    def apply_member(self, member: str) -> None:
        self.stood += read_members(member).values()

    def load_base(self) -> None:
        """Nothing is served here."""

    def listen(self) -> None:
        """It is still the same."""

    def load_lora_adapter(self, body: Any) -> tuple[int, Any]:
        assert body["lora_path"] == f"germline:{body['lora_name']}"
        assert body["lora_name"] in self.members
        return 200, "Success"

    def unload_lora_adapter(self, _body: Any) -> tuple[int, Any]:
        return 200, "Success"

    def reset_prefix_cache(self, _body: Any) -> tuple[int, Any]:
        return 200, {"success": True}

    def completions(self, body: Any) -> tuple[int, Any]:
        ids = [5, body["stop_token_ids"][0]] if "stop_token_ids" in body else [5]
        choices = []
        for index, prompt in enumerate(body["prompt"]):
            scores = [{str(token): {"logprob": -place}} for place, token in enumerate(prompt)]
            choices.append(
                {"index": index, "token_ids": ids, "prompt_logprobs": [None, *scores[1:]]}
            )
        return 200, {"choices": choices[::-1]}


@pytest.fixture
def pretended():
    return Pretended(str(folder("qwen2")))


@pytest.fixture
def script(pretended):
    with listening(pretended.reply) as found:
        yield found


def config(script: Scripted, space: Any = "low_rank", **section: Any) -> Config:
    engine = {"kind": "vllm", "base_url": script.url, "retry_timeout_s": 0.0, **section}
    return load_config({"model": str(folder("qwen2")), "space": space, "engine": engine})


def opened(script: Scripted, space: Any = "low_rank", **section: Any) -> Any:
    return closing(make_engine(config(script, space, **section)))


def verbs(script: Scripted) -> list[str]:
    return [body["args"][1] for body in script.bodies("/collective_rpc")]


# --- what is sent


def test_what_is_played_is_asked_for_by_name(script):
    with opened(script) as engine:
        engine.generate([*MEMBERS, None], EXAMPLES, GREEDY)
    names = [body["lora_name"] for body in script.bodies("/v1/load_lora_adapter")]
    played = script.bodies("/v1/completions")
    assert sorted(names) == sorted(body["model"] for body in played)
    assert len(set(names)) == len(MEMBERS) + 1
    assert all(len(body["prompt"]) == len(EXAMPLES) for body in played)
    assert all(isinstance(token, int) for token in played[0]["prompt"][0])


def test_names_are_kept_as_long_as_the_weights_and_new_after_an_update(script):
    with opened(script) as engine:
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
        before = {body["lora_name"] for body in script.bodies("/v1/load_lora_adapter")}
        assert len(before) == len(script.bodies("/v1/load_lora_adapter")) == len(MEMBERS)
        engine.apply(UPDATE)
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
    unloaded = {body["lora_name"] for body in script.bodies("/v1/unload_lora_adapter")}
    after = {body["lora_name"] for body in script.bodies("/v1/load_lora_adapter")} - before
    assert before <= unloaded
    assert len(after) == len(MEMBERS)


def test_the_cache_of_prefixes_is_emptied_when_weights_change(script):
    with opened(script, "full") as engine:
        before = len(script.bodies("/reset_prefix_cache"))
        engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
        engine.apply(UPDATE)
        # The member's weights, the center's after it, and the new center's.
        assert len(script.bodies("/reset_prefix_cache")) == before + 3


def test_a_dense_member_stands_while_it_plays_and_the_center_stands_again(script, pretended):
    with opened(script, "full") as engine:
        engine.generate(MEMBERS[:2], EXAMPLES, GREEDY)
    assert pretended.stood == [None, MEMBERS[0], None, MEMBERS[1], None]


def test_the_center_stands_again_where_playing_failed(script, pretended):
    with opened(script, "full") as engine:
        pretended.instead["/v1/completions"] = (400, {"error": {"message": "too long"}})
        with pytest.raises(GermlineError, match=r"refused \(400\): too long"):
            engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
    assert pretended.stood[-1] is None


def test_masters_there_follow_those_here(script, pretended):
    with opened(script) as engine:
        engine.apply(UPDATE)
        assert pretended.masters.digest() == engine.weights.digest()
        sent = script.bodies("/collective_rpc")
        assert max(len(str(body)) for body in sent) < 10_000
        assert "receive" not in verbs(script)


def test_masters_of_a_snapshot_are_sent(script, pretended):
    with opened(script) as engine:
        state = {name: one * 0.5 for name, one in engine.weights.state().items()}
        engine.weights.load_state(state)
        engine.refresh()
        assert pretended.received.keys() == state.keys()
        assert pretended.masters.digest() == engine.weights.digest()


def test_masters_that_came_out_differently_there_are_made_the_same(script, pretended, caplog):
    with opened(script) as engine:
        name = engine.weights.searched[0].name
        pretended.masters.tensors[name].view(-1)[0] += 1e-6
        engine.apply(UPDATE)
        assert pretended.masters.digest() == engine.weights.digest()
    assert "differ in their last bits" in caplog.text


def test_all_prompts_share_no_luck_but_all_members_do(script):
    with opened(script) as engine:
        engine.generate(MEMBERS, EXAMPLES, Decoding(max_new_tokens=4, temperature=0.7))
    played = script.bodies("/v1/completions")
    seeds: dict[str, list[int]] = {body["model"]: [] for body in played}
    for body in played:
        seeds[body["model"]].append(body["seed"])
    assert len({tuple(sorted(one)) for one in seeds.values()}) == 1
    assert all(len(set(one)) == len(EXAMPLES) for one in seeds.values())


def test_nothing_is_left_to_the_model_s_own_generation_settings(script):
    with opened(script) as engine:
        engine.generate([None], EXAMPLES, GREEDY)
    (body,) = script.bodies("/v1/completions")
    neutral = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    neutral |= {"presence_penalty": 0, "frequency_penalty": 0, "ignore_eos": True}
    assert {name: body[name] for name in neutral} == neutral


def test_log_probabilities_are_those_of_the_tokens_behind_the_prompt(script):
    with opened(script) as engine:
        written = engine.generate(MEMBERS, EXAMPLES, GREEDY)
        (found, *_) = engine.log_probabilities(MEMBERS, EXAMPLES, written)
        prompt = len(engine.encoder.encode(EXAMPLES[0]))
    assert found[0] == [-prompt, -prompt - 1]


# --- who is refused at the start


def test_a_server_that_is_not_there_is_told_with_how_to_start_it():
    with listening(lambda _path, _body: (200, {})) as gone:
        pass
    with pytest.raises(GermlineError) as caught:
        make_engine(config(gone))
    told = str(caught.value)
    assert f"engine.base_url={gone.url}" in told
    assert "VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=True python -m vllm" in told
    assert (
        "--worker-extension-cls germline.engines.vllm.worker_extension.GermlineWorkerExtension"
        in told
    )
    assert "--max-lora-rank 1" in told


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        ("/collective_rpc", (404, {"detail": "Not Found"}), "does not let its workers be asked"),
        ("/collective_rpc", (500, {"error": "no attribute"}), "lacks germline's part"),
        ("/v1/models", (200, "<html>a proxy</html>"), "web page"),
        ("/v1/models", (200, {"models": []}), "makes no sense"),
    ],
)
def test_a_server_that_was_started_otherwise_is_told_with_how_to_start_it(
    script, pretended, path, answer, told
):
    pretended.instead[path] = answer
    with pytest.raises(GermlineError, match=rf"{told}[\s\S]*Start it with\nVLLM_SERVER"):
        make_engine(config(script))


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"dtype": "bfloat16"}, "set engine.dtype=bfloat16"),
        ({"max_loras": 0}, "serves no adapters"),
        ({"max_lora_rank": 1}, "has room for rank 1, and 8 is needed"),
    ],
)
def test_a_server_that_cannot_serve_the_space_is_refused(script, pretended, about, told):
    pretended.about = about
    with pytest.raises(GermlineError, match=told):
        make_engine(config(script, {"kind": "low_rank", "rank": 2}))


def test_another_model_behind_the_url_is_refused(script, pretended):
    pretended.model = str(folder("llama"))
    with pytest.raises(GermlineError, match=r"model: .* serves .* digest .* those of"):
        make_engine(config(script))


# --- who is lost on the way


@pytest.fixture
def _no_long_pauses(monkeypatch):
    monkeypatch.setattr("germline.engines.served.http_client.FIRST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("_no_long_pauses")
def test_a_server_that_is_away_is_asked_again(script, pretended):
    left = [503, 503]

    def away(body: Any) -> tuple[int, Any]:
        return (left.pop(), "busy") if left else pretended.completions(body)

    with opened(script, retry_timeout_s=30) as engine:
        pretended.instead["/v1/completions"] = away
        ((found,),) = engine.generate([None], EXAMPLES[:1], GREEDY)
    assert found.finish == "eos"


def hanging(_body: Any) -> tuple[int, Any]:
    time.sleep(1)
    return 200, {}


def test_a_server_that_hangs_is_given_up(script, pretended):
    with opened(script, timeout_s=0.5) as engine:
        pretended.instead["/v1/completions"] = hanging
        with pytest.raises(EngineLost, match=r"no answer within 0\.5 s"):
            engine.generate([None], EXAMPLES, GREEDY)


def test_a_server_whose_engine_died_is_lost(script, pretended):
    with opened(script) as engine:
        pretended.instead["/v1/completions"] = (500, {"error": {"message": "EngineDeadError"}})
        with pytest.raises(EngineLost, match="EngineDeadError"):
            engine.generate([None], EXAMPLES, GREEDY)


def test_texts_of_a_server_that_was_started_anew_are_not_believed(script, pretended):
    def anew(body: Any) -> tuple[int, Any]:
        pretended.run = ""
        return pretended.completions(body)

    with opened(script, "full") as engine:
        pretended.instead["/v1/completions"] = anew
        with pytest.raises(EngineLost, match="started anew"):
            engine.generate([None], EXAMPLES, GREEDY)


def test_a_run_that_another_one_took_the_server_from_is_told(script, pretended):
    with opened(script, "full") as first, opened(script, "full") as second:
        with pytest.raises(EngineLost, match="started anew"):
            first.generate([None], EXAMPLES, GREEDY)
        second.generate([None], EXAMPLES, GREEDY)


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": []},
        {"choices": [{"index": 0, "token_ids": None}]},
        {"error": "none"},
        [1, 2],
        "plain words",
    ],
)
def test_answers_that_make_no_sense_are_a_loss(script, pretended, answer):
    with opened(script) as engine:
        pretended.instead["/v1/completions"] = (200, answer)
        with pytest.raises(EngineLost, match="makes no sense"):
            engine.generate([None], EXAMPLES[:1], GREEDY)


def test_an_update_that_is_sent_twice_is_followed_once(script, pretended):
    hung_up: list[bool] = []

    def once(body: Any) -> tuple[int, Any]:
        status, said = pretended.collective_rpc(body)
        if body["args"][1] == "apply" and not hung_up:
            hung_up.append(True)
            return -status, said
        return status, said

    with opened(script, retry_timeout_s=30) as engine:
        pretended.instead["/collective_rpc"] = once
        engine.apply(UPDATE)
        sent = [body["args"] for body in script.bodies("/collective_rpc")]
    assert [one[2] for one in sent if one[1] == "apply"] == ["1", "1"]
