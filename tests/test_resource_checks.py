"""A run whose weights or snapshots cannot fit is refused before a weight is loaded."""

import shutil
from types import SimpleNamespace

import pytest

from germline import train
from germline.config import load_config
from germline.engines import pretrained
from germline.estimates import hardware
from germline.run.build_parts import build_run_parts, make_engine
from germline.run.resource_checks import check_disk, check_memory
from germline.types import GermlineError
from tests.tiny import save_tiny

QWEN = "Qwen/Qwen2.5-0.5B"
CPU = {"kind": "inprocess", "device": "cpu"}


def available(monkeypatch, gigabytes):
    monkeypatch.setattr(hardware, "available_bytes", lambda: gigabytes * 1e9)


def free_disk(monkeypatch, gigabytes):
    usage = SimpleNamespace(free=gigabytes * 1e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)


def test_weights_above_the_memory_are_refused_with_what_would_fit(monkeypatch):
    available(monkeypatch, 1.9)
    config = load_config(
        {"model": QWEN, "space": "lora", "engine": CPU, "microbatch": {"rows": 64}}
    )
    with pytest.raises(GermlineError) as caught:
        check_memory(config)
    assert f"model={QWEN} does not fit: 2.0 GB of host memory" in str(caught.value)
    assert "1.9 GB are available; what would fit: engine.dtype=bfloat16" in str(caught.value)


def test_where_nothing_would_fit_that_is_said(monkeypatch):
    available(monkeypatch, 0.2)
    with pytest.raises(GermlineError, match="use a smaller model or a larger machine"):
        check_memory(load_config({"model": QWEN, "engine": CPU}))


def test_what_fits_is_let_through_and_no_generation_is_guessed(monkeypatch):
    available(monkeypatch, 2.1)  # of 1.98 GB: whether a generation fits too is doctor's to say
    check_memory(load_config({"model": QWEN, "space": "lora", "engine": CPU}))


def test_masters_count_only_where_something_is_searched(monkeypatch):
    available(monkeypatch, 3.0)
    config = load_config({"model": QWEN, "space": "full", "engine": CPU})
    with pytest.raises(GermlineError, match="fp32 masters 2"):
        check_memory(config)
    check_memory(config, searched=False)


def test_no_weight_is_loaded_of_a_model_that_is_refused(monkeypatch, tmp_path):
    folder = save_tiny(tmp_path / "m", "qwen2")
    available(monkeypatch, 1e-6)
    monkeypatch.setattr(pretrained, "load_pretrained", pytest.fail)
    with pytest.raises(GermlineError, match="does not fit"):
        make_engine(load_config({"model": str(folder), "engine": CPU}))


def test_a_model_that_cannot_be_read_is_told_by_the_loader(tmp_path):
    check_memory(load_config({"model": str(tmp_path), "engine": CPU}))
    check_disk(load_config({"model": str(tmp_path), "engine": CPU}), tmp_path)


def test_engines_of_one_host_share_its_memory_and_mapped_weights(monkeypatch):
    available(monkeypatch, 2.5)
    fleet = {"engines": 2}
    config = load_config({"model": QWEN, "space": "lora", "engine": CPU, "fleet": fleet})
    check_memory(config)
    with pytest.raises(GermlineError, match=r"4\.0 GB of host memory"):
        check_memory(config, engines=2)
    with pytest.raises(GermlineError, match=r"4\.0 GB of host memory"):
        build_run_parts(config)
    available(monkeypatch, 1.2)  # bf16 is mapped from its file: 0.99 GB for both
    check_memory(load_config(config.model_dump(), ["engine.dtype=bfloat16"]), engines=2)


def test_memory_elsewhere_is_not_asked_for(monkeypatch):
    available(monkeypatch, 2.6)  # masters and frozen weights, none of the server's copy
    served = {"kind": "vllm", "base_url": "http://127.0.0.1:1"}
    check_memory(load_config({"model": QWEN, "engine": served}))


@pytest.mark.parametrize(
    ("gigabytes", "remedy"),
    [(5.0, "set record.keep_snapshots=1, or"), (2.5, "set record.snapshot_gb=0 to write none")],
)
def test_snapshots_above_the_free_disk_are_refused(monkeypatch, tmp_path, gigabytes, remedy):
    free_disk(monkeypatch, gigabytes)
    config = load_config({"model": QWEN, "space": "full", "engine": CPU})
    with pytest.raises(GermlineError) as caught:
        check_disk(config, tmp_path)
    said = str(caught.value)
    assert "record.keep_snapshots=2: 2 snapshots of 2.0 GB and the next one need 5.9 GB" in said
    assert f"{gigabytes} GB free: {remedy}" in said


def test_the_remedies_are_let_through(monkeypatch, tmp_path):
    settings = {"model": QWEN, "space": "full", "engine": CPU}
    free_disk(monkeypatch, 5.0)
    check_disk(load_config(settings, ["record.keep_snapshots=1"]), tmp_path)
    free_disk(monkeypatch, 2.5)
    check_disk(load_config(settings, ["record.snapshot_gb=0"]), tmp_path)


def test_snapshots_that_are_there_count_as_free(monkeypatch, tmp_path):
    free_disk(monkeypatch, 0.0)
    config = load_config({"model": QWEN, "space": {"kind": "lora", "rank": 1}, "engine": CPU})
    with pytest.raises(GermlineError, match="give --out on another disk"):
        check_disk(config, tmp_path)
    (tmp_path / "snapshots").mkdir()
    with (tmp_path / "snapshots" / "generation-000001.safetensors").open("wb") as file:
        file.truncate(20_000_000)
    check_disk(config, tmp_path)


def test_a_run_is_refused_before_its_directory_is_made(monkeypatch, tmp_path):
    folder = save_tiny(tmp_path / "m", "qwen2")
    free_disk(monkeypatch, 1e-6)
    with pytest.raises(GermlineError, match=r"record\.keep_snapshots=2"):
        train({"model": str(folder), "task": "conciseness", "engine": CPU}, tmp_path / "run")
    assert not (tmp_path / "run").exists()
