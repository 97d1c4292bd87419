"""What vLLM and SGLang engines share: adapters, written tensors, completions, sampling seeds."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from germline.config import Full, Lora, LowRank, MicrobatchSettings, Nes, Subspace, load_config
from germline.engines.pretrained import load_pretrained
from germline.engines.rows_in_progress import Detokenizer, cut_completion
from germline.engines.served_engine import example_sampling_seeds
from germline.engines.vllm.engine import GenerateRequest
from germline.evaluation.kl_divergence import MemberKl
from germline.fleet import LocalFleet
from germline.nano import NANO_DIR
from germline.strategies.nes import NaturalEvolution
from germline.tasks import make_task
from germline.types import Decoding, Example, SeedPerturbation
from tests import simulated_sglang, simulated_vllm
from tests.scripted_server import listening
from tests.simulated_vllm import SimulatedLlm
from tests.tiny_engines import inprocess as tiny
from tests.toy_runs import GradedHere


def inprocess(space=None):
    return tiny(str(NANO_DIR), space)


pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

MEMBERS = [
    SeedPerturbation(7, 0, direction, sign, 0.02) for direction in (0, 1) for sign in (1, -1)
]
IDS = torch.tensor([[5, 9, 20, 33, 41]])


def peft_logits(folder, adapter):
    """Load an adapter with plain `peft`, and return its logits."""
    folder.mkdir()
    save_file(dict(adapter.tensors), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(adapter.config()))
    model = AutoModelForCausalLM.from_pretrained(NANO_DIR, dtype=torch.float32)
    with torch.inference_mode():
        return PeftModel.from_pretrained(model, folder).eval()(IDS).logits


@pytest.mark.parametrize("space", [LowRank(rank=1), LowRank(rank=4), Lora(rank=4)])
def test_a_member_s_adapter_gives_plain_peft_the_logits_of_the_inprocess_engine(tmp_path, space):
    engine = inprocess(space=space)
    assert bool(engine.weights.changed_weights()) == isinstance(space, LowRank)
    for number, (member, adapter) in enumerate(
        zip([*MEMBERS, None], engine.weights.member_adapters([*MEMBERS, None]), strict=True)
    ):
        expected = engine.logits(member, IDS)
        torch.testing.assert_close(
            peft_logits(tmp_path / str(number), adapter), expected, atol=2e-5, rtol=1e-5
        )


@pytest.mark.parametrize("space", [Full(), Subspace(dimension=16)])
def test_tensors_written_for_a_member_are_those_of_the_inprocess_engine(space):
    engine = inprocess(space=space)
    assert engine.weights.adapter_rank is None
    plain = load_pretrained(str(NANO_DIR)).model
    for member in [MEMBERS[1], None]:
        moved = dict(engine.weights.written_tensors(member))
        assert list(moved) == [info.name for info in engine.weights.changed_weights()]
        plain.load_state_dict(moved, strict=False)
        with torch.inference_mode():
            found = plain(IDS).logits
        torch.testing.assert_close(found, engine.logits(member, IDS), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("stop", [(), (" 4",), ("is", "he"), ("\n",)])
def test_tokens_after_the_end_are_cut_as_by_the_inprocess_engine(stop):
    engine = inprocess()
    examples = [Example(k, f"What is {k} + 4?", "", chat=True) for k in range(12)]
    decoding = Decoding(max_new_tokens=16, stop=stop)
    (expected,) = engine.generate([None], examples, decoding)
    detokenize = Detokenizer(engine.pretrained.tokenizer, engine.encoder.end_ids)
    for completion in expected:
        too_long = [*completion.tokens, *([5] * 30)]
        if completion.finish == "length":
            too_long = [*completion.tokens]
        found = cut_completion(detokenize, too_long, completion.prompt_tokens, decoding)
        assert found == completion


def test_sampling_seeds_differ_between_examples_samples_turns_generations_streams_and_runs():
    examples = [Example(k, "", "", chat=False, sample=n) for k in range(9) for n in (0, 1, 11)]
    settings = [
        (Decoding(1, noise_seed=run, noise_generation=generation, noise_stream=stream), turn)
        for run in (0, 1)
        for generation in (0, 1)
        for stream in ("train", "test")
        for turn in (0, 1)
    ]
    seeds = [seed for one in settings for seed in example_sampling_seeds(examples, *one)]
    assert len(set(seeds)) == len(seeds) == 27 * 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    digest = hashlib.sha256(b"germline sampling/0/0/train/0").digest()
    assert seeds[0] == int.from_bytes(digest[:8], "little") >> 1


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
