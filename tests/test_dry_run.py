"""`germline train --dry-run`: what it announces is what a run then does, and it does nothing."""

import json
import socket

import pytest

import germline
from germline.config import load_config
from germline.estimates.machine import Machine
from germline.run import dry_run as module
from germline.run.dry_run import dry_run
from germline.types import GermlineError
from tests.command_line import command
from tests.published_models import published

QWEN = published("Qwen/Qwen2.5-0.5B-Instruct")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_run_that_does_not_fit_ends_with_status_1(tmp_path, monkeypatch):
    small = Machine("a GPU", on_gpu=True, device_bytes=5e8, host_bytes=1e9)
    monkeypatch.setattr(module, "machine_here", lambda _: small)
    monkeypatch.chdir(tmp_path)
    words = ("train", "papers/qiu-countdown-0.5b", f"model={QWEN}", "--dry-run")
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
