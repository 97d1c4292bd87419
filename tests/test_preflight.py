"""A run that this machine cannot hold is refused before anything is loaded or started."""

import pytest
from typer.testing import CliRunner

from germline import train
from germline.cli.application import app
from germline.config import load_config
from germline.engines import pretrained
from germline.estimates import machine as machine_module
from germline.run import build_parts, preflight
from germline.run.build_parts import build_run_parts, make_engine
from germline.run.preflight import check_memory, check_run, check_workers
from germline.tasks import make_task
from germline.types import GermlineError
from tests.published_models import published
from tests.tiny import save_tiny

QWEN = published("Qwen/Qwen2.5-0.5B")
CPU = {"kind": "inprocess", "device": "cpu"}


def available(monkeypatch, gigabytes):
    for module in (machine_module, preflight):
        monkeypatch.setattr(module, "available_bytes", lambda: gigabytes * 1e9)


MEMORY = {
    # setting, what is checked -> GB that are needed for the weights
    ("space=lora", "microbatch.rows=64"): 1.98,  # the batch is for a dry run to say
    ("space=full",): 3.95,
    ("space=lora", "fleet.engines=2"): 3.95,
    ("space=lora", "fleet.engines=2", "engine.dtype=bfloat16"): 0.99,  # mapped once from its file
    ("engine={kind: sglang, base_url: http://127.0.0.1:1}",): 1.70,  # without the server's copy
}


@pytest.mark.parametrize(("overrides", "needed"), MEMORY.items())
def test_weights_above_the_memory_are_refused_with_what_would_fit(monkeypatch, overrides, needed):
    config = load_config({"model": QWEN, "engine": CPU}, overrides)
    available(monkeypatch, 1.02 * needed)
    check_memory(config, engines=config.fleet.engines)
    available(monkeypatch, 0.98 * needed)
    with pytest.raises(GermlineError) as caught:
        check_memory(config, engines=config.fleet.engines)
    assert f"model={QWEN} does not fit: {needed:.1f} GB of host memory" in str(caught.value)
    assert "less is needed by engine.dtype=bfloat16" in str(caught.value)


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
    available(monkeypatch, 2.5)
    settings = {"model": QWEN, "space": "lora", "engine": CPU, "fleet": {"engines": 2}}
    with pytest.raises(GermlineError, match=r"4\.0 GB of host memory"):
        build_run_parts(load_config(settings))
    # The loader says what is wrong with a model that cannot be read.
    check_memory(load_config({"model": str(tmp_path), "engine": CPU}))


# --- counts of processes


def machine(monkeypatch, cores=4, gigabytes=16.0):
    """Let the machine have these resources, all of its memory available."""
    available(monkeypatch, gigabytes)
    monkeypatch.setattr(preflight, "usable_cores", lambda: cores)


COUNTS = [
    # setting, refused, the most that is allowed
    ("fleet.engines", 500, 65),
    ("graders.workers", 100_000, 192),
]


@pytest.mark.parametrize(("setting", "asked", "most"), COUNTS)
def test_what_no_machine_can_run_is_refused_before_anything_starts(
    setting, asked, most, monkeypatch, tmp_path, caplog
):
    machine(monkeypatch)
    monkeypatch.setattr(build_parts, "make_fleet", pytest.fail)
    monkeypatch.setattr(build_parts, "make_graders", pytest.fail)
    settings = {"task": "arithmetic", "batch_size": 4, "engine": "toy"}
    config = load_config(settings, [f"{setting}={asked}"])
    with pytest.raises(GermlineError, match=rf"{setting}={asked}: .*set at most {setting}={most};"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    check_workers(load_config(settings, [f"{setting}={most}"]), setting)
    monkeypatch.setenv("GERMLINE_FORCE", "1")
    check_workers(config, setting)
    (warning,) = {one.getMessage() for one in caplog.records}
    assert f"set at most {setting}={most}" in warning


@pytest.mark.parametrize(
    "words",
    [
        ("train", "CONFIG", "--out", "OUT"),
        ("resume", "RUN", "generations=2"),
        ("probe", "CONFIG", "--out", "OUT"),
    ],
    ids=" ".join,
)
def test_commands_that_train_refuse_it_unless_forced(words, monkeypatch, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "{task: conciseness, engine: toy, generations: 1, batch_size: 2, strategy: {population: 4},"
        " graders: {workers: 3}, held_out: {examples: 2}, record: {tensorboard: false}}"
    )
    names = {"CONFIG": config, "OUT": tmp_path / "out", "RUN": tmp_path / "run"}
    command = [str(names.get(word, word)) for word in words]
    if words[0] == "resume":
        list(train(config, tmp_path / "run"))
    monkeypatch.setattr(preflight, "MOST_GRADERS", 2)
    monkeypatch.setattr(preflight, "MOST_PER_CORE", 0)

    class Reached(Exception):
        pass

    def reach(*_args, **_kwargs):
        raise Reached

    monkeypatch.setattr(build_parts, "_make_pool", reach)
    refused = CliRunner().invoke(app, command)
    assert "graders.workers=3: " in refused.stderr
    forced = CliRunner(env={"GERMLINE_FORCE": "1"}).invoke(app, command)
    assert isinstance(forced.exception, Reached)


def test_the_defaults_are_allowed_on_the_smallest_machine(monkeypatch):
    """The default memory limit of graders is above its memory."""
    machine(monkeypatch, cores=1, gigabytes=0.2)
    check_run(load_config({"task": "arithmetic", "engine": "toy"}, ["graders.workers=1"]), None)


def test_engines_of_a_cluster_are_not_measured_against_this_machine(monkeypatch):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    machine(monkeypatch)
    joined = "fleet={kind: ray, engines: 500, address: auto}"
    check_workers(load_config({"task": "arithmetic"}, [joined]), "fleet.engines")
    with pytest.raises(GermlineError, match=r"fleet\.engines=500"):
        check_run(load_config({"task": "arithmetic"}, [joined.replace("auto", "null")]), None)


def test_grader_processes_are_checked_where_no_run_is_started(monkeypatch):
    """`germline evaluate`, `check` and `probe` start graders as well."""
    machine(monkeypatch)
    config = load_config({"task": "arithmetic"}, ["graders.workers=100000"])
    with pytest.raises(GermlineError, match=r"graders\.workers=100000"):
        build_parts.make_graders(config, make_task(config.task))
