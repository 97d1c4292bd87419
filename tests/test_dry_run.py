"""`germline train --dry-run`: what it announces is what a run then does, and it does nothing."""

import json

import pytest

import germline
from germline import train
from germline.config import load_config
from germline.engines import pretrained
from germline.estimates import machine as machine_module
from germline.estimates.machine import Machine
from germline.run import build_parts, preflight
from germline.run import dry_run as module
from germline.run.build_parts import build_run_parts, make_engine
from germline.run.dry_run import dry_run
from germline.run.preflight import check_memory
from germline.types import GermlineError
from tests.command_line import command
from tests.published_models import published
from tests.refusals import refusal
from tests.tiny import save_tiny

INSTRUCT = published("Qwen/Qwen2.5-0.5B-Instruct")


def test_a_run_that_does_not_fit_ends_with_status_1(tmp_path, monkeypatch):
    small = Machine("a GPU", on_gpu=True, device_bytes=5e8, host_bytes=1e9)
    monkeypatch.setattr(module, "machine_here", lambda _: small)
    monkeypatch.chdir(tmp_path)
    words = ("train", "papers/qiu-countdown-0.5b", f"model={INSTRUCT}", "--dry-run")
    done = command(*words)
    assert done.exit_code == 1
    assert "engine.dtype=bfloat16" in done.output
    found = json.loads(command(*words, "--json").stdout)
    assert (found["fits"], found["memory"]["available"]["device"]) == (False, 5e8)


def test_seeds_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("train", "demo", "seeds=0..4", "--dry-run", "--json", "--out", "five")
    found = json.loads(command(*words).stdout)
    assert (found["runs"], found["out"]) == (5, "five/seed-0")
    assert list(tmp_path.iterdir()) == []


BROKEN_REWARD = """\
train = [{"prompt": f"{n} + 1", "answer": f"{n + 1}"} for n in range(9)]
def reward(completion, example):
    raise KeyError("total")
"""
FEW_ROWS = """\
train = [{"prompt": f"{n}"} for n in range(9)]
def reward(completion, example):
    return float(len(completion))
"""
TOKEN = "{kind: judge, url: 'http://127.0.0.1:9/v1', model: m, token_env: GERMLINE_NO_SUCH}"
REFUSED = {
    "kl": (["task=wordle", "task.kl_coef=0.1"], r"task\.kl_coef=0\.1 is for single completions"),
    "scorer": (
        ["task=wordle", "task.scorers.long={kind: length, start: 1, end: 9}"],
        r"task\.scorers=long is for single completions",
    ),
    "gradient": (
        ["task=wordle", "method=es_sample_gd", "space=full", "strategy.learning_rate=0.01"],
        r"es_sample_gd .*task\.kind=wordle has episodes",
    ),
    "token": ([f"task.scorers.good={TOKEN}"], r"good\.token_env=GERMLINE_NO_SUCH"),
    "few_shot": (
        ["task={kind: FOLDER/few.py}", "prompt_search.few_shot=[0, 1]"],
        r"prompt_search\.few_shot asks for up to 1 .* has 0",
    ),
    "reward": (["task={kind: FOLDER/broken.py}"], r"the reward fails on every answer"),
}


@pytest.mark.parametrize("start", [dry_run, germline.train])
@pytest.mark.parametrize(("overrides", "said"), REFUSED.values(), ids=REFUSED)
def test_a_dry_run_refuses_what_a_training_refuses(tmp_path, start, overrides, said):
    (tmp_path / "broken.py").write_text(BROKEN_REWARD)
    (tmp_path / "few.py").write_text(FEW_ROWS)
    placed = [one.replace("FOLDER", str(tmp_path)) for one in overrides]
    config = load_config({"task": "arithmetic", "model": "nano"}, placed)
    with pytest.raises(GermlineError, match=said):
        start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(GermlineError, match="exists and is not empty"):
        start(config, tmp_path)


# --- a run that this machine cannot hold is refused before anything is loaded or started


QWEN = published("Qwen/Qwen2.5-0.5B")
CPU = {"kind": "inprocess", "device": "cpu"}


def available(monkeypatch, gigabytes):
    monkeypatch.setattr(machine_module, "available_bytes", lambda: gigabytes * 1e9)


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
    message = refusal(check_memory, config, engines=config.fleet.engines)
    assert f"model={QWEN} does not fit: {needed:.1f} GB of host memory" in message
    assert "less is needed by engine.dtype=bfloat16" in message


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


def test_more_engines_than_this_machine_can_hold_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 16e9)
    monkeypatch.setattr(build_parts, "make_fleet", pytest.fail)
    settings = {"task": "arithmetic", "batch_size": 4, "engine": "toy", "fleet": {"engines": 500}}
    with pytest.raises(GermlineError, match=r"fleet.engines=500: .* set at most fleet.engines=65"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
