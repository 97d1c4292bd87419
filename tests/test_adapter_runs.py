"""Runs whose theta is a LoRA adapter: what they leave, and what starts from it."""

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from germline.config import load_config
from germline.record import RunDirectory
from germline.run import export, replay, train
from germline.types import GermlineError
from tests.tiny_engines import folder
from tests.toy_runs import finish, run

# What peft calls is deprecated by transformers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
    pytest.mark.usefixtures("graded_in_process"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run from a random adapter of its own."""
    overrides = ("model=" + str(folder("llama")), "engine={kind: inprocess, threads: 1}")
    space = "space={kind: lora, rank: 2, init_scale_b: 0.3, layers: 0-1}"
    folder_of_run = tmp_path_factory.mktemp("run") / "run"
    return run(folder_of_run, *overrides, space, "strategy.sigma=0.1", "seed=5")


def test_snapshots_hold_the_adapter_alone(trained):
    stored = load_file(RunDirectory.open(trained).snapshots / "generation-000003.safetensors")
    assert len(stored) == 2 * 7 * 2
    assert all("lora_" in name for name in stored)


def test_a_run_that_starts_from_an_adapter_needs_that_adapter(trained, tmp_path, monkeypatch):
    export(trained, tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)
    space = "space={kind: lora, rank: 2, init_adapter: adapter, layers: 0-1}"
    config = RunDirectory.open(trained).config
    second = finish(
        train(load_config(config.model_dump(exclude={"space"}), [space]), tmp_path / "second")
    )
    monkeypatch.chdir("/")  # the folder is recorded as an absolute path
    replay(second, 3)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    with safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    save_file({n: t + 1e-6 for n, t in load_file(file).items()}, file, metadata)
    with pytest.raises(GermlineError, match=r"not the one this run began .*space\.init_adapter"):
        replay(second, 3)


def test_the_toy_engine_trains_adapters_that_a_run_can_start_from(tmp_path):
    first = run(tmp_path / "first", "space={kind: lora, rank: 2}")
    export(first, tmp_path / "adapter")
    space = f"space={{kind: lora, rank: 2, init_adapter: {tmp_path / 'adapter'}}}"
    second = RunDirectory.open(run(tmp_path / "second", space))
    assert second.held_out()[0].score.mean == RunDirectory.open(first).held_out()[-1].score.mean


def test_runs_of_other_spaces_have_no_adapter_to_write(tmp_path):
    other = run(tmp_path / "run", "generations=1")
    with pytest.raises(GermlineError, match=r"space\.kind=low_rank"):
        export(other, tmp_path / "out", "adapter")
    assert not (tmp_path / "out").exists()
