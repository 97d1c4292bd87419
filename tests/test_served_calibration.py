"""A sigma that is calibrated on inference servers, which return log-probabilities only."""

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from germline.config import AutoSigma, Config, MicrobatchSettings, Nes, load_config
from germline.engines.vllm.engine import MEMBERS_PER_SCORING
from germline.evaluation.member_kl import MemberKl
from germline.fleet import LocalFleet
from germline.run.build_parts import make_engine
from germline.strategies.nes import NaturalEvolution
from germline.tasks import make_task
from germline.types import Decoding, SeedPerturbation
from tests import simulated_sglang, test_vllm_servers
from tests.scripted_server import listening
from tests.tiny_engines import folder
from tests.toy_runs import GradedHere

TARGET = 0.002


@dataclass
class Vllm(test_vllm_servers.SimulatedVllm):
    """Members find every token less likely than the center does, by the square of their sigma."""

    loaded: set[str] = field(default_factory=set)
    most: int = 0

    def load_lora_adapter(self, body: Any) -> tuple[int, Any]:
        self.loaded.add(body["lora_name"])
        self.most = max(self.most, len(self.loaded))
        return super().load_lora_adapter(body)

    def unload_lora_adapter(self, body: Any) -> tuple[int, Any]:
        self.loaded.remove(body["lora_name"])
        return super().unload_lora_adapter(body)

    def completions(self, body: Any) -> tuple[int, Any]:
        status, answer = super().completions(body)
        member = self.members.get(body["model"])
        farther = (
            TARGET * (member.sigma / 0.02) ** 2 if isinstance(member, SeedPerturbation) else 0.0
        )
        for choice in answer["choices"]:
            for scores in choice["prompt_logprobs"][1:]:
                for one in scores.values():
                    one["logprob"] -= farther
        return status, answer


class Sglang(simulated_sglang.SimulatedSglang):
    """The first member is the center; others find every token less likely by the target."""

    def generate(self, body: Any) -> tuple[int, Any]:
        status, answers = super().generate(body)
        names = body.get("lora_path")
        if status == 200 and names and body.get("return_logprob"):
            for name, answer in zip(names, answers, strict=True):
                for place in answer["meta_info"]["input_token_logprobs"][1:]:
                    place[0] = -1.0 - TARGET * (name != names[0])
        return status, answers

    def row(self, ids: list[int], body: Any) -> dict[str, Any]:
        if not (body.get("return_logprob") and body.get("lora_path")):
            return super().row(ids, body)
        scored = [[None, ids[0], None], *([-1.0, token, None] for token in ids[1:])]
        start = body["logprob_start_len"][body["input_ids"].index(ids)]
        meta = {"weight_version": self.version, "input_token_logprobs": scored[start:]}
        return {"output_ids": [], "meta_info": meta}


def config(url: str, kind: str) -> Config:
    engine = {"kind": kind, "base_url": url, "retry_timeout_s": 0.0}
    return load_config({"model": str(folder("qwen2")), "engine": engine})


def opened(url: str, kind: str) -> Any:
    return closing(make_engine(config(url, kind)))


@pytest.mark.parametrize(
    ("server", "kind", "expected"),
    [(Vllm(str(folder("qwen2"))), "vllm", 0.02), (Sglang(), "sglang", 0.1)],
    ids=["vllm", "sglang"],
)
def test_sigma_is_calibrated_to_the_target_kl_on_a_server(server, kind, expected):
    task = make_task(config("http://nowhere", kind).task)
    examples = task.examples("train")[:4]
    strategy = NaturalEvolution(Nes(population=4), run_seed=0, generations=1)
    with listening(server.reply) as script, opened(script.url, kind) as here:
        fleet = LocalFleet(here, GradedHere(task), MicrobatchSettings())
        sampling_noise = Decoding(max_new_tokens=4)
        strategy.calibrate(0, MemberKl(fleet, lambda _: examples, 0, sampling_noise))
    (found,) = {one.sigma for one in strategy.ask(0).seed_perturbations()}
    assert found == pytest.approx(expected, rel=0.01)


def test_a_server_needs_room_for_few_adapters_while_sigma_is_calibrated():
    # Eight trials of sixteen members and the center are 129 adapters.
    server = Vllm(str(folder("qwen2")))
    task = make_task(config("http://nowhere", "vllm").task)
    examples = task.examples("train")[:2]
    strategy = NaturalEvolution(Nes(population=4, sigma=AutoSigma(target_kl=1e-6)), 0, 1)
    with listening(server.reply) as script, opened(script.url, "vllm") as here:
        fleet = LocalFleet(here, GradedHere(task), MicrobatchSettings())
        sampling_noise = Decoding(max_new_tokens=4)
        strategy.calibrate(0, MemberKl(fleet, lambda _: examples, 0, sampling_noise))
        assert len(server.members) > 2 * 16
        assert server.most <= 1 + MEMBERS_PER_SCORING
        assert len(server.loaded) <= 1
