"""A sigma that is calibrated on inference engines, which return log-probabilities only."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from germline.config import MicrobatchSettings, Nes, load_config
from germline.engines.vllm.engine import GenerateRequest
from germline.evaluation.kl_divergence import MemberKl
from germline.fleet import LocalFleet
from germline.strategies.nes import NaturalEvolution
from germline.tasks import make_task
from germline.types import Decoding, SeedPerturbation
from tests import simulated_sglang, simulated_vllm
from tests.scripted_server import listening
from tests.simulated_vllm import SimulatedLlm
from tests.toy_runs import GradedHere

TARGET = 0.002


class Vllm(SimulatedLlm):
    """Members find every token less likely than the center does, by the square of their sigma."""

    def scored(self, request: GenerateRequest, start: int) -> Sequence[float]:
        member = self.members[str(request.adapter)]
        farther = (
            TARGET * (member.sigma / 0.02) ** 2 if isinstance(member, SeedPerturbation) else 0.0
        )
        return [score - farther for score in super().scored(request, start)]


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


@contextmanager
def sglang() -> Iterator[Any]:
    with listening(Sglang().reply) as script, closing(simulated_sglang.served(script)) as engine:
        yield engine


@pytest.mark.parametrize(
    ("opened", "expected"),
    [(lambda: simulated_vllm.opened(Vllm()), 0.02), (sglang, 0.1)],
    ids=["vllm", "sglang"],
)
def test_sigma_is_calibrated_to_the_target_kl_on_an_inference_engine(opened, expected):
    task = make_task(load_config({}).task)
    examples = task.examples("train")[:4]
    strategy = NaturalEvolution(Nes(population=4), run_seed=0, generations=1)
    with opened() as engine:
        fleet = LocalFleet(engine, GradedHere(task), MicrobatchSettings())
        sampling_noise = Decoding(max_new_tokens=4)
        strategy.calibrate(0, MemberKl(fleet, lambda _: examples, 0, sampling_noise))
    (sigma,) = {one.sigma for one in strategy.ask(0).seed_perturbations()}
    assert sigma == pytest.approx(expected, rel=0.01)
