"""The engine vllm against a scripted OpenAI server: its requests, and the responses it refuses.

tests/engines_real tests with the real server that members are evaluated correctly.
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
class SimulatedVllm:
    """The routes of vLLM 0.32 and of germline's worker extension that tests need."""

    model: str = ""
    masters: Masters | None = None
    run: str = ""
    updates: int = 0
    members: dict[str, Any] = field(default_factory=dict)
    written: list[Any] = field(default_factory=list)
    received: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    instead: dict[str, Any] = field(default_factory=dict)

    def reply(self, path: str, body: Any) -> tuple[int, Any]:
        """Respond as vLLM 0.32 does."""
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
            return 200, {"results": [{"lost": "vLLM was restarted"}]}
        return 200, {"results": [getattr(self, verb)(*texts) or {}]}

    def describe(self) -> dict[str, Any]:
        return {"dtype": "float32", "max_loras": 2, "max_lora_rank": 8, **self.about}

    def build(self, spec: str) -> dict[str, str]:
        self.masters = masters_from_spec(spec, self.model)
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
        self.written += read_members(member).values()

    def load_base(self) -> None:
        """Do nothing: there are no weights."""

    def listen(self) -> None:
        """Do nothing: the run still owns this server."""

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
def simulated():
    return SimulatedVllm(str(folder("qwen2")))


@pytest.fixture
def script(simulated):
    with listening(simulated.reply) as found:
        yield found


def config(script: Scripted, space: Any = "low_rank", **section: Any) -> Config:
    engine = {"kind": "vllm", "base_url": script.url, "retry_timeout_s": 0.0, **section}
    return load_config({"model": str(folder("qwen2")), "space": space, "engine": engine})


def opened(script: Scripted, space: Any = "low_rank", **section: Any) -> Any:
    return closing(make_engine(config(script, space, **section)))


def verbs(script: Scripted) -> list[str]:
    return [body["args"][1] for body in script.bodies("/collective_rpc")]


# --- requests


def test_members_are_evaluated_as_named_adapters(script):
    with opened(script) as engine:
        engine.generate([*MEMBERS, None], EXAMPLES, GREEDY)
    names = [body["lora_name"] for body in script.bodies("/v1/load_lora_adapter")]
    completed = script.bodies("/v1/completions")
    assert sorted(names) == sorted(body["model"] for body in completed)
    assert len(set(names)) == len(MEMBERS) + 1
    assert all(len(body["prompt"]) == len(EXAMPLES) for body in completed)
    assert all(isinstance(token, int) for token in completed[0]["prompt"][0])


def test_adapter_names_are_reused_until_an_update_and_new_after_it(script):
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


def test_the_prefix_cache_is_emptied_when_weights_change(script):
    with opened(script, "full") as engine:
        before = len(script.bodies("/reset_prefix_cache"))
        engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
        engine.apply(UPDATE)
        # For the member's weights, for the center's after them, and for the new center's.
        assert len(script.bodies("/reset_prefix_cache")) == before + 3


def test_a_dense_member_is_written_for_its_evaluation_and_the_center_after_it(script, simulated):
    with opened(script, "full") as engine:
        engine.generate(MEMBERS[:2], EXAMPLES, GREEDY)
    assert simulated.written == [None, MEMBERS[0], None, MEMBERS[1], None]


def test_the_center_is_written_again_after_a_failed_evaluation(script, simulated):
    with opened(script, "full") as engine:
        simulated.instead["/v1/completions"] = (400, {"error": {"message": "too long"}})
        with pytest.raises(GermlineError, match=r"refused \(400\): too long"):
            engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
    assert simulated.written[-1] is None


def test_worker_masters_apply_the_same_updates(script, simulated):
    with opened(script) as engine:
        engine.apply(UPDATE)
        assert simulated.masters.digest() == engine.weights.digest()
        sent = script.bodies("/collective_rpc")
        assert max(len(str(body)) for body in sent) < 10_000
        assert "receive" not in verbs(script)


def test_masters_of_a_snapshot_are_sent_to_the_workers(script, simulated):
    with opened(script) as engine:
        state = {name: one * 0.5 for name, one in engine.weights.state().items()}
        engine.weights.load_state(state)
        engine.refresh()
        assert simulated.received.keys() == state.keys()
        assert simulated.masters.digest() == engine.weights.digest()


def test_worker_masters_that_differ_after_an_update_are_replaced(script, simulated, caplog):
    with opened(script) as engine:
        name = engine.weights.searched[0].name
        simulated.masters.tensors[name].view(-1)[0] += 1e-6
        engine.apply(UPDATE)
        assert simulated.masters.digest() == engine.weights.digest()
    assert "differ in their last bits" in caplog.text


def test_sampling_seeds_differ_between_prompts_and_are_shared_by_members(script):
    with opened(script) as engine:
        engine.generate(MEMBERS, EXAMPLES, Decoding(max_new_tokens=4, temperature=0.7))
    completed = script.bodies("/v1/completions")
    seeds: dict[str, list[int]] = {body["model"]: [] for body in completed}
    for body in completed:
        seeds[body["model"]].append(body["seed"])
    assert len({tuple(sorted(one)) for one in seeds.values()}) == 1
    assert all(len(set(one)) == len(EXAMPLES) for one in seeds.values())


def test_requests_set_every_sampling_parameter(script):
    with opened(script) as engine:
        engine.generate([None], EXAMPLES, GREEDY)
    (body,) = script.bodies("/v1/completions")
    neutral = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    neutral |= {"presence_penalty": 0, "frequency_penalty": 0, "ignore_eos": True}
    assert {name: body[name] for name in neutral} == neutral


def test_log_probabilities_are_those_of_the_tokens_after_the_prompt(script):
    with opened(script) as engine:
        written = engine.generate(MEMBERS, EXAMPLES, GREEDY)
        (found, *_) = engine.log_probabilities(MEMBERS, EXAMPLES, written)
        prompt = len(engine.encoder.encode(EXAMPLES[0]))
    assert found[0] == [-prompt, -prompt - 1]


# --- servers that are refused at the start


def test_an_unreachable_server_is_an_error_with_the_start_command():
    with listening(lambda _path, _body: (200, {})) as gone:
        pass
    with pytest.raises(GermlineError) as caught:
        make_engine(config(gone))
    message = str(caught.value)
    assert f"engine.base_url={gone.url}" in message
    assert "VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=True python -m vllm" in message
    assert (
        "--worker-extension-cls germline.engines.vllm.worker_extension.GermlineWorkerExtension"
        in message
    )
    assert "--max-lora-rank 1" in message


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("/collective_rpc", (404, {"detail": "Not Found"}), "lacks the route /collective_rpc"),
        ("/collective_rpc", (500, {"error": "no attribute"}), "lacks germline's worker extension"),
        ("/v1/models", (200, "<html>a proxy</html>"), "web page"),
        ("/v1/models", (200, {"models": []}), "response is invalid"),
    ],
)
def test_a_server_without_the_extension_is_an_error_with_the_start_command(
    script, simulated, path, answer, problem
):
    simulated.instead[path] = answer
    with pytest.raises(GermlineError, match=rf"{problem}[\s\S]*Start it with\nVLLM_SERVER"):
        make_engine(config(script))


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"dtype": "bfloat16"}, "set engine.dtype=bfloat16"),
        ({"max_loras": 0}, "serves no adapters"),
        ({"max_lora_rank": 1}, "accepts adapters up to rank 1, and the run needs 8"),
    ],
)
def test_a_server_that_cannot_serve_the_space_is_refused(script, simulated, about, problem):
    simulated.about = about
    with pytest.raises(GermlineError, match=problem):
        make_engine(config(script, {"kind": "low_rank", "rank": 2}))


def test_another_model_behind_the_url_is_refused(script, simulated):
    simulated.model = str(folder("llama"))
    with pytest.raises(GermlineError, match=r"model: .* serves .* digest .* those of"):
        make_engine(config(script))


# --- servers that are lost during a run


@pytest.fixture
def _no_long_pauses(monkeypatch):
    monkeypatch.setattr("germline.engines.served.http_client.FIRST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("_no_long_pauses")
def test_requests_to_an_unavailable_server_are_retried(script, simulated):
    left = [503, 503]

    def unavailable(body: Any) -> tuple[int, Any]:
        return (left.pop(), "busy") if left else simulated.completions(body)

    with opened(script, retry_timeout_s=30) as engine:
        simulated.instead["/v1/completions"] = unavailable
        ((found,),) = engine.generate([None], EXAMPLES[:1], GREEDY)
    assert found.finish == "eos"


def hanging(_body: Any) -> tuple[int, Any]:
    time.sleep(1)
    return 200, {}


def test_a_server_that_hangs_is_lost(script, simulated):
    with opened(script, timeout_s=0.5) as engine:
        simulated.instead["/v1/completions"] = hanging
        with pytest.raises(EngineLost, match=r"no answer within 0\.5 s"):
            engine.generate([None], EXAMPLES, GREEDY)


def test_a_server_whose_engine_died_is_lost(script, simulated):
    with opened(script) as engine:
        simulated.instead["/v1/completions"] = (500, {"error": {"message": "EngineDeadError"}})
        with pytest.raises(EngineLost, match="EngineDeadError"):
            engine.generate([None], EXAMPLES, GREEDY)


def test_texts_of_a_restarted_server_are_refused(script, simulated):
    def restart(body: Any) -> tuple[int, Any]:
        simulated.run = ""
        return simulated.completions(body)

    with opened(script, "full") as engine:
        simulated.instead["/v1/completions"] = restart
        with pytest.raises(EngineLost, match="restarted"):
            engine.generate([None], EXAMPLES, GREEDY)


def test_a_run_whose_server_another_run_claimed_stops(script, simulated):
    with opened(script, "full") as first, opened(script, "full") as second:
        with pytest.raises(EngineLost, match="restarted"):
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
def test_an_invalid_response_is_the_loss_of_the_engine(script, simulated, answer):
    with opened(script) as engine:
        simulated.instead["/v1/completions"] = (200, answer)
        with pytest.raises(EngineLost, match="response is invalid"):
            engine.generate([None], EXAMPLES[:1], GREEDY)


def test_an_update_that_is_sent_twice_is_applied_once(script, simulated):
    broken: list[bool] = []

    def once(body: Any) -> tuple[int, Any]:
        status, said = simulated.collective_rpc(body)
        if body["args"][1] == "apply" and not broken:
            broken.append(True)
            return -status, said
        return status, said

    with opened(script, retry_timeout_s=30) as engine:
        simulated.instead["/collective_rpc"] = once
        engine.apply(UPDATE)
        sent = [body["args"] for body in script.bodies("/collective_rpc")]
    assert [one[2] for one in sent if one[1] == "apply"] == ["1", "1"]
