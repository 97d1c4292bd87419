"""`germline train --dry-run`: what it announces is what a run then does, and it does nothing."""

import json
import socket
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.cli.dry_run import as_plain
from germline.cli.estimate import gigabytes, rollouts
from germline.config import load_config
from germline.estimates.hardware import GPUS
from germline.run import dry_run as module
from germline.run import resource_checks
from germline.run.dry_run import dry_run
from germline.types import GermlineError
from tests.tiny import save_tiny
from tests.tiny_classifiers import save_classifier
from tests.toy_runs import SETTINGS, run, settings

QWEN = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture(autouse=True)
def described_machine(monkeypatch):
    """Take a data sheet for this machine, so that no test depends on its speed."""
    monkeypatch.setattr(module, "machine_here", lambda *_: GPUS["80gb"])


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def written(folder):
    """Return the files of a run directory and their sizes, those of a subfolder together."""
    found: dict[str, int] = {}
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size:
            place = file.relative_to(folder).parts
            name = f"{place[0]}/" if len(place) > 1 else place[0]
            found[name] = found.get(name, 0) + file.stat().st_size
    return found


def test_the_files_are_those_that_a_run_writes(tmp_path):
    plan = dry_run(settings("record.tensorboard=true"), tmp_path / "run")
    run(tmp_path / "run", "record.tensorboard=true")
    found = written(tmp_path / "run")
    planned = {one.name: one.bytes for one in plan.files}
    assert planned.keys() == found.keys()
    assert planned["run.json"] == pytest.approx(found["run.json"], abs=30)
    for name, size in planned.items():
        if name == "evolution.png":  # tests leave the figure undrawn
            continue
        assert found[name] / 3 < size < 3 * found[name], name


def test_a_dry_run_writes_nothing_and_uses_no_network(tmp_path, monkeypatch, no_network):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", "recipes/qwen2.5-0.5b-24gb", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert list(tmp_path.iterdir()) == []
    assert f"model {QWEN}: would be downloaded, 988 MB" in done.output
    assert "32 members x 64 examples of 200, in each of 200 generations" in done.output
    assert "generations: 200" in done.output
    assert "population: 32" not in done.output  # the default
    assert " for 200 generations with calibration and held-out scores" in done.output
    assert "\n  times are " in done.output
    assert done.output.endswith("Nothing was written, and the network was not used.\n")


def test_a_model_whose_config_is_not_here_is_refused_without_the_network(no_network):
    with pytest.raises(GermlineError, match=r"config\.json of 'nobody/no-model' is not on this"):
        dry_run({"model": "nobody/no-model"})


def test_a_dataset_that_is_not_here_would_be_downloaded(no_network, tmp_path):
    pytest.importorskip("datasets")
    task = {"kind": "dataset", "path": "nobody/no-rows", "reward": "exact"}
    plan = dry_run({"task": task, "engine": "toy"}, tmp_path / "run")
    assert [(one.name, one.found, one.bytes) for one in plan.sources] == [
        ("nobody/no-rows", "download", None)
    ]
    assert plan.training_examples is None


def test_a_model_folder_has_the_size_of_its_files(tmp_path):
    folder = save_tiny(tmp_path / "m", "qwen2")
    plan = dry_run({"model": str(folder)}, tmp_path / "run")
    (source,) = plan.sources
    assert (source.found, source.bytes) == (
        "folder",
        (folder / "model.safetensors").stat().st_size,
    )
    (folder / "model.safetensors").unlink()
    (source,) = dry_run({"model": str(folder)}, tmp_path / "run").sources
    assert source.found == "without_weights"


def scored(folder, **settings):
    scorer = {"kind": "classifier", "model": str(folder), **settings}
    return {"task": {"kind": "countdown", "scorers": {"good": scorer}}, "model": "nano"}


@pytest.mark.parametrize("family", ["qwen2", "llama", "bert"])
def test_a_classifier_that_scores_is_counted_and_named(tmp_path, family):
    folder = save_classifier(tmp_path / "m", family)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    plan = dry_run(scored(folder), tmp_path / "run")
    assert plan.estimate is not None
    sizes = {part.name: (part.bytes, part.place) for part in plan.estimate.parts}
    assert sizes["task.scorers.good"] == (model.num_parameters() * 4, "device")
    assert sizes["task.scorers.good, a batch"][0] > 0
    half = dry_run(scored(folder, dtype="bfloat16", device="cpu"), tmp_path / "run").estimate
    assert half is not None
    sizes = {part.name: (part.bytes, part.place) for part in half.parts}
    assert sizes["task.scorers.good"] == (model.num_parameters() * 2, "host")
    other = dry_run(scored(folder, device="cuda:1"), tmp_path / "run").estimate
    assert other is not None
    assert not any(part.name.startswith("task.scorers") for part in other.parts)
    source = plan.sources[1]
    assert (source.what, source.name, source.found) == ("scorer", str(folder), "folder")


def test_a_classifier_that_is_not_here_is_refused_without_the_network(no_network, tmp_path):
    with pytest.raises(
        GermlineError, match=r"task\.scorers\.good\.model: config\.json of 'nobody/"
    ):
        dry_run(scored("nobody/no-model"), tmp_path / "run")


def test_the_number_of_members_is_resolved(tmp_path):
    plan = dry_run(
        {"strategy": "cma", "space": {"kind": "subspace", "dimension": 8}}, tmp_path / "r"
    )
    assert plan.config.strategy.population == 10  # 4 + 3 ln 8


def test_what_a_run_refuses_a_dry_run_refuses(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("precious")
    with pytest.raises(GermlineError, match="exists and is not empty"):
        dry_run(SETTINGS, tmp_path / "taken")
    with pytest.raises(GermlineError, match=r"graders\.workers=100000 is too many"):
        dry_run({**SETTINGS, "graders": {"workers": 100000}}, tmp_path / "new")


def test_a_run_that_does_not_fit_ends_with_status_1(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "machine_here", lambda *_: GPUS["laptop-8gb"])
    # A training would refuse these weights; a dry run estimates what they need.
    monkeypatch.setattr(resource_checks, "_available", lambda _: (False, 0, 10**8))
    words = ["train", "papers/qiu-countdown-0.5b", "--dry-run", "--json", "--out", "run"]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    found = json.loads(done.stdout)
    assert (done.exit_code, found["fits"]) == (1, False)
    assert found["would_fit_with"]


@pytest.mark.parametrize(
    ("count", "text"), [(25_165_824_000, "25.17 GB"), (3_400_000, "3.4 MB"), (912, "912 bytes")]
)
def test_little_memory_is_in_a_small_unit(count, text):
    assert gigabytes(count) == text


def test_seeds_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "demo", "seeds=0..4", "--dry-run", "--json", "--out", "five"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert (found["runs"], found["out"]) == (5, "five/seed-0")
    assert list(tmp_path.iterdir()) == []


def test_shapes_are_those_of_the_estimate(tmp_path):
    config = load_config(Path("papers/qiu-countdown-0.5b"))
    plan = dry_run(config, tmp_path / "run")
    assert plan.estimate is not None
    assert plan.estimate.work.members * plan.estimate.work.examples == 30 * 200
    assert plan.estimate.work.texts == plan.texts
    assert isinstance(germline.Config.model_validate(plan.config.model_dump()), germline.Config)


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


def test_a_missing_package_is_refused(tmp_path, monkeypatch):
    from germline.engines.vllm import in_process
    from germline.run import build_fleet

    for place in (in_process, build_fleet):
        monkeypatch.setattr(place, "find_spec", lambda _: None)
    for setting in ("engine=vllm", "fleet={kind: ray, engines: 2}"):
        with pytest.raises(GermlineError, match=r"which is not installed"):
            dry_run(load_config({"model": "nano"}, [setting]), tmp_path / "run")


def test_doctor_refuses_what_a_task_cannot_have(tmp_path):
    (tmp_path / "c.yaml").write_text("model: nano\ntask: {kind: wordle, kl_coef: 0.1}\n")
    done = CliRunner().invoke(
        app, ["doctor", "--config", str(tmp_path / "c.yaml"), "--hardware", "80gb"]
    )
    assert done.exit_code != 0
    assert "task.kl_coef=0.1 is for single completions" in " ".join(done.output.split())


def test_where_the_center_samples_members_are_said_to_score(tmp_path):
    config = load_config(
        {"model": "nano", "task": "arithmetic", "batch_size": 4},
        ["method={kind: zo_grpo, group_size: 4, rows_per_member: 5}", "record.rollouts=100"],
    )
    plan = dry_run(config, tmp_path / "run")
    assert rollouts(config, 4) == "4 samples x 4 examples, scored by 128 members"
    assert {one.name: one.meaning for one in plan.files}["rollouts.jsonl"].startswith("16 rollouts")
    assert as_plain(plan, 1)["batch"]["scored_per_member"] == 5
