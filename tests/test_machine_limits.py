"""A run that this machine cannot hold or run is refused before anything is loaded or started."""

import math
import os
import re
import shutil
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from germline import train
from germline.cli.application import app
from germline.config import load_config
from germline.engines import pretrained
from germline.estimates import machine as machine_module
from germline.run import build_parts, machine_limits
from germline.run.build_parts import build_run_parts, make_engine
from germline.run.machine_limits import (
    check_disk,
    check_engines,
    check_graders,
    check_memory,
    check_population,
    check_threads,
    refusals_as_warnings,
)
from germline.tasks import make_task
from germline.types import GermlineError
from tests.published_models import published
from tests.tiny import save_tiny

QWEN = published("Qwen/Qwen2.5-0.5B")
CPU = {"kind": "inprocess", "device": "cpu"}


def available(monkeypatch, gigabytes):
    for module in (machine_module, machine_limits):
        monkeypatch.setattr(module, "available_bytes", lambda: gigabytes * 1e9)


def free_disk(monkeypatch, gigabytes):
    usage = SimpleNamespace(free=gigabytes * 1e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)


def test_weights_above_the_memory_are_refused_with_what_would_fit(monkeypatch):
    available(monkeypatch, 1.9)
    config = load_config(
        {"model": QWEN, "space": "lora", "engine": CPU, "microbatch": {"rows": 64}},
        ["strategy.sigma=0.1"],
    )
    with pytest.raises(GermlineError) as caught:
        check_memory(config)
    assert f"model={QWEN} does not fit: 2.0 GB of host memory" in str(caught.value)
    assert "1.9 GB are available; less is needed by engine.dtype=bfloat16" in str(caught.value)


def test_what_fits_is_let_through_and_no_generation_is_guessed(monkeypatch):
    available(monkeypatch, 2.1)  # of 1.98 GB: whether a generation fits is for a dry run to say
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
    served = {"kind": "sglang", "base_url": "http://127.0.0.1:1"}
    check_memory(load_config({"model": QWEN, "engine": served}))


@pytest.mark.parametrize(
    ("gigabytes", "remedy"),
    [(5.0, "set record.keep_snapshots=1, or"), (2.5, "set record.snapshot_gb=0 ")],
)
def test_snapshots_above_the_free_disk_are_refused(monkeypatch, tmp_path, gigabytes, remedy):
    free_disk(monkeypatch, gigabytes)
    config = load_config({"model": QWEN, "space": "full", "engine": CPU})
    with pytest.raises(GermlineError) as caught:
        check_disk(config, tmp_path)
    said = str(caught.value)
    assert "record.keep_snapshots=2: 2 snapshots of 2.0 GB and the next one need 5.9 GB" in said
    assert f"{gigabytes} GB free; {remedy}" in said


def test_the_remedies_are_let_through(monkeypatch, tmp_path):
    settings = {"model": QWEN, "space": "full", "engine": CPU}
    free_disk(monkeypatch, 5.0)
    check_disk(load_config(settings, ["record.keep_snapshots=1"]), tmp_path)
    free_disk(monkeypatch, 2.5)
    check_disk(load_config(settings, ["record.snapshot_gb=0"]), tmp_path)


def test_snapshots_that_are_there_count_as_free(monkeypatch, tmp_path):
    free_disk(monkeypatch, 0.0)
    config = load_config({"model": QWEN, "space": {"kind": "lora", "rank": 1}, "engine": CPU})
    with pytest.raises(GermlineError, match="--out on another disk"):
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


# --- limits of the machine


def check_limits(config, examples):
    check_threads(config)
    check_engines(config)
    check_population(config, examples)


def machine(monkeypatch, cores=4, gigabytes=16.0, files=1024):
    """Let the machine have these resources, all of its memory available."""
    available(monkeypatch, gigabytes)
    monkeypatch.setattr(machine_limits, "usable_cores", lambda: cores)
    monkeypatch.setattr(machine_limits, "_open_files", lambda: float(files))


REFUSED = {
    "fleet.engines=500": r"fleet\.engines=500: .* set at most fleet\.engines=65",
    "graders.workers=100000": r"graders\.workers=100000: .*1024 files .*graders\.workers=192",
    "graders.timeout_s=1e12": r"graders\.timeout_s=1e\+12 .* at most 1e\+06",
    "fleet.hang_timeout_s=1e12": r"fleet\.hang_timeout_s=1e\+12 .*",
    "task.scorers={judged: {kind: openrlhf, url: http://127.0.0.1:9, timeout_s: 1e12}}": (
        r"task\.scorers\.judged\.timeout_s=1e\+12 .*"
    ),
    "strategy.population=100000000": (
        r"strategy\.population=100000000: 400000000 rollouts .* at most "
        r"strategy\.population=2962962, or a smaller batch_size"
    ),
    "engine={kind: inprocess, threads: 100000}": (
        r"engine\.threads=100000: .* 4 cores; set engine\.threads=4, or at most 256"
    ),
}


@pytest.mark.parametrize(("override", "message"), REFUSED.items(), ids=REFUSED)
def test_what_no_machine_can_run_is_refused_before_anything_starts(
    override, message, monkeypatch, tmp_path
):
    machine(monkeypatch)
    monkeypatch.setattr(build_parts, "make_fleet", pytest.fail)
    monkeypatch.setattr(build_parts, "make_graders", pytest.fail)
    changed = {"engine": "toy"} if "engine=" not in override else {"engine": "inprocess"}
    config = load_config({"task": "arithmetic", "batch_size": 4, **changed}, [override])
    with pytest.raises(GermlineError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


LIMITS_OF_THE_SYSTEM = (
    "graders.timeout_s=1e12",
    "fleet.hang_timeout_s=1e12",
    "task.scorers={judged: {kind: openrlhf, url: http://127.0.0.1:9, timeout_s: 1e12}}",
    "graders.workers=100000",
)


@pytest.mark.parametrize("override", REFUSED, ids=str)
def test_force_turns_a_refusal_into_a_warning(override, monkeypatch, caplog):
    machine(monkeypatch)
    kind = {"engine": "inprocess"} if "engine=" in override else {"engine": "toy"}
    config = load_config({"task": "arithmetic", "batch_size": 4, **kind}, [override])

    def check():
        check_limits(config, 1000)
        check_graders(config)

    with pytest.raises(GermlineError, match=REFUSED[override]) as refused:
        check()
    forceable = override not in LIMITS_OF_THE_SYSTEM
    assert (
        "; --force or GERMLINE_FORCE=1 tries it nevertheless" in str(refused.value)
    ) == forceable
    with refusals_as_warnings():
        if forceable:
            check()
            (warning,) = {one.getMessage() for one in caplog.records}
            assert re.search(REFUSED[override], warning)
            assert warning.endswith("; tried nevertheless (--force or GERMLINE_FORCE)")
        else:
            with pytest.raises(GermlineError, match=REFUSED[override]):
                check()
    with pytest.raises(GermlineError):
        check()


def test_force_lets_more_grader_processes_than_cores_but_not_than_files(monkeypatch):
    machine(monkeypatch, gigabytes=1.0)
    monkeypatch.setenv("GERMLINE_FORCE", "1")
    check_graders(load_config({"task": "arithmetic"}, ["graders.workers=192"]))
    with pytest.raises(GermlineError, match=r"at most graders\.workers=192"):
        check_graders(load_config({"task": "arithmetic"}, ["graders.workers=193"]))
    monkeypatch.setattr(machine_limits, "_open_files", lambda: math.inf)
    check_graders(load_config({"task": "arithmetic"}, ["graders.workers=100000"]))
    monkeypatch.setenv("GERMLINE_FORCE", "0")
    with pytest.raises(GermlineError, match="or at most 43"):
        check_graders(load_config({"task": "arithmetic"}, ["graders.workers=192"]))


def test_force_holds_for_memory_and_disk(monkeypatch, tmp_path, caplog):
    available(monkeypatch, 0.2)
    free_disk(monkeypatch, 0.1)
    config = load_config({"model": QWEN, "space": "full", "engine": CPU})
    with refusals_as_warnings():
        check_memory(config)
        check_disk(config, tmp_path)
    memory, disk = (one.getMessage() for one in caplog.records)
    assert f"model={QWEN} does not fit" in memory
    assert "record.keep_snapshots=2" in disk


@pytest.mark.parametrize(
    "words",
    [
        ("train", "CONFIG", "--out", "OUT"),
        ("train", "CONFIG", "--dry-run"),
        ("train", "CONFIG", "seeds=0,1", "--out", "OUT"),
        ("resume", "RUN", "generations=2"),
        ("probe", "CONFIG", "--out", "OUT"),
    ],
    ids=" ".join,
)
def test_commands_that_train_have_the_option(words, monkeypatch, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "{task: conciseness, engine: toy, generations: 1, batch_size: 2, strategy: {population: 4},"
        " graders: {workers: 3}, held_out: {examples: 2}, record: {tensorboard: false}}"
    )
    names = {"CONFIG": config, "OUT": tmp_path / "out", "RUN": tmp_path / "run"}
    command = [str(names.get(word, word)) for word in words]
    if words[0] == "resume":
        list(train(config, tmp_path / "run"))
    monkeypatch.setattr(machine_limits, "_most_per_machine", lambda: 2)

    class Reached(Exception):
        pass

    def reach(*_args, **_kwargs):
        raise Reached

    monkeypatch.setattr(build_parts, "_make_pool", reach)
    refused = CliRunner().invoke(app, command)
    assert "graders.workers=3: " in refused.stderr
    forced = CliRunner().invoke(app, [*command, "--force"])
    assert isinstance(forced.exception, Reached)
    assert "GERMLINE_FORCE" not in os.environ


ALLOWED = [
    "fleet.engines=8",
    "graders.workers=192",
    "graders.timeout_s=1000000",
    "strategy.population=100000",
    "fleet.engines=36",
    "engine={kind: inprocess, threads: 256}",
]


@pytest.mark.parametrize("override", ALLOWED)
def test_what_is_unusual_but_possible_is_allowed(override, monkeypatch):
    machine(monkeypatch)
    config = load_config({"task": "arithmetic", "batch_size": 4}, [override])
    check_limits(config, 1000)
    check_graders(config)


def test_the_defaults_are_allowed_on_the_smallest_machine(monkeypatch):
    """The default memory limit of graders is above its memory."""
    machine(monkeypatch, cores=1, gigabytes=0.2, files=256)
    config = load_config({"task": "arithmetic"}, ["graders.workers=1", "strategy.population=30"])
    check_limits(config, 256)
    check_graders(config)


def test_a_batch_counts_as_many_examples_as_the_task_has(monkeypatch):
    machine(monkeypatch)
    config = load_config({"task": "arithmetic"}, ["batch_size=100000000"])
    check_limits(config, 1000)
    with pytest.raises(GermlineError, match="or a smaller batch_size"):
        check_limits(config, 100_000_000)


def test_engines_of_a_cluster_are_not_measured_against_this_machine(monkeypatch):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    machine(monkeypatch)
    joined = "fleet={kind: ray, engines: 500, address: auto}"
    check_limits(load_config({"task": "arithmetic"}, [joined]), 1000)
    with pytest.raises(GermlineError, match=r"fleet\.engines=500"):
        check_limits(load_config({"task": "arithmetic"}, [joined.replace("auto", "null")]), 1000)


def test_grader_processes_are_checked_where_no_run_is_started(monkeypatch):
    """`germline evaluate`, `check` and `probe` start graders as well."""
    machine(monkeypatch)
    config = load_config({"task": "arithmetic"}, ["graders.workers=100000"])
    with pytest.raises(GermlineError, match=r"graders\.workers=100000"):
        build_parts.make_graders(config, make_task(config.task))
