"""`germline train --dry-run`: what it announces is what a run then does, and it does nothing."""

import json
import socket

import pytest
from transformers import AutoModelForSequenceClassification

import germline
from germline.config import load_config
from germline.estimates.machine import Machine
from germline.estimates.memory import classifier_parts
from germline.estimates.workload import TextLengths
from germline.run import dry_run as module
from germline.run.dry_run import Source, dry_run
from germline.types import GermlineError
from tests.command_line import command
from tests.published_models import published
from tests.tiny import save_tiny
from tests.tiny_classifiers import save_classifier

QWEN = published("Qwen/Qwen2.5-0.5B-Instruct")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_dataset_that_is_not_here_would_be_downloaded(no_network, tmp_path):
    pytest.importorskip("datasets")
    task = {"kind": "dataset", "path": "nobody/no-rows", "reward": "exact"}
    plan = dry_run({"task": task, "engine": "toy"}, tmp_path / "run")
    assert plan.sources == (Source("dataset", "nobody/no-rows", is_here=False),)
    assert plan.training_examples is None


def test_a_model_folder_has_the_size_of_its_files(tmp_path):
    folder = save_tiny(tmp_path / "m", "qwen2")
    size = (folder / "model.safetensors").stat().st_size
    plan = dry_run({"model": str(folder)}, tmp_path / "run")
    assert plan.sources == (Source("model", str(folder), is_here=True, bytes=size),)
    (folder / "model.safetensors").unlink()
    (source,) = dry_run({"model": str(folder)}, tmp_path / "run").sources
    assert not source.is_here


def scored(folder, **settings):
    scorer = {"kind": "classifier", "model": str(folder), **settings}
    return {"task": {"kind": "countdown", "scorers": {"good": scorer}}, "model": "nano"}


@pytest.mark.parametrize("family", ["qwen2", "llama", "bert"])
def test_a_classifier_that_scores_is_counted_and_named(tmp_path, family):
    folder = save_classifier(tmp_path / "m", family)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        plan = dry_run(scored(folder, dtype=dtype), tmp_path / "run")
        assert plan.estimate is not None
        sizes = {part.name: part.bytes for part in plan.estimate.parts}
        assert sizes["task.scorers.good"] == model.num_parameters() * size
        assert sizes["task.scorers.good, a batch"] > 0
        assert (plan.sources[1].what, plan.sources[1].name) == ("scorer", str(folder))


def test_a_classifier_on_another_gpu_takes_no_memory_of_the_engine(tmp_path):
    folder = save_classifier(tmp_path / "m", "qwen2")
    texts = TextLengths(8, 20, 4, 16)

    def places(device):
        parts = classifier_parts(load_config(scored(folder, device=device)), texts, on_gpu=True)
        return {part.place for part in parts}

    assert (places("cuda:0"), places("cpu"), places("cuda:1")) == ({"device"}, {"host"}, set())


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
    "workers": (["graders.workers=100000"], r"graders\.workers=100000: "),
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
