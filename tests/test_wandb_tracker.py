"""Runs tracked with Weights & Biases, offline: no test uses the network or leaves a process."""

import json
import os
import re
import struct
from importlib.machinery import ModuleSpec

import pytest
import yaml

import germline
from checks.reference import DOCS
from germline.record import RunDirectory
from germline.run import trackers
from germline.types import GermlineError
from tests.hang_limit import wait_until
from tests.other_process import python
from tests.toy_runs import finish, journal, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

BLOCK, HEADER = 32_768, 7
"""Of the log format of LevelDB, in which W&B writes an offline run, and of its records."""
TRACKED = ("record.wandb=true", "record.tensorboard=false", "generations=3")


@pytest.fixture(autouse=True)
def wandb_here(tmp_path, monkeypatch):
    """Keep every file of W&B in a temporary folder, and end its service; return the folder."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-files"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    import wandb  # importing it costs seconds

    wandb.teardown()


def offline_runs(path):
    return sorted((path / "wandb").glob("offline-run-*"))


def records(folder):
    """Read the records of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    data, place, whole = file.read_bytes(), HEADER, b""
    found = []
    while place < len(data):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block is padding
            place += BLOCK - place % BLOCK
            continue
        _checksum, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        whole += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(Record.FromString(whole))
            whole = b""
    return found


def history(folder):
    rows = [record.history.item for record in records(folder) if record.HasField("history")]
    names = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row}
        for row in rows
    ]
    return [{name: value for name, value in row.items() if name[0] != "_"} for row in names]


def exit_status(folder):
    wait_until(lambda: any(one.HasField("exit") for one in records(folder)))  # a busy service
    return next(one.exit.exit_code for one in records(folder) if one.HasField("exit"))


@pytest.mark.usefixtures("drawn_figures")
def test_a_run_is_tracked_offline_and_continued(wandb_here):
    path = run(wandb_here / "one", *TRACKED)
    (folder,) = offline_runs(path)
    rows = history(folder)
    recorded = RunDirectory.open(path)
    generations = [row for row in rows if "generation" in row]
    assert [row["fitness/mean"] for row in generations] == [
        row["fitness"]["mean"] for row in recorded.generations()
    ]
    assert {"search/sigma", "fitness/best", "signals/walk"} <= generations[0].keys()
    scores = [one.score for one in recorded.held_out()]
    held_out = [row for row in rows if "updates" in row]
    assert [one.generation for one in scores] == [row["updates"] for row in held_out] == [0, 2, 3]
    assert [row[f"held_out/{scores[0].metric}"] for row in held_out] == [one.mean for one in scores]
    (figure,) = (folder / "files/media/images").iterdir()
    assert figure.read_bytes() == recorded.figure.read_bytes()
    (begun,) = [one.run for one in records(folder) if one.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    config.pop("_wandb", None)
    assert config == recorded.config.model_dump(mode="json")
    assert (begun.project, begun.display_name) == ("germline", "one")
    axes = {
        one.metric.name: one.metric.step_metric for one in records(folder) if one.HasField("metric")
    }
    assert axes["fitness/mean"] == "generation"
    assert axes["behavior/empty"] == "updates"
    assert exit_status(folder) == 0

    finish(germline.resume(path, ["generations=4"]))
    _, again = offline_runs(path)
    assert again.name.rpartition("-")[2] == folder.name.rpartition("-")[2]
    assert [row["generation"] for row in history(again) if "generation" in row] == [3]
    assert not (wandb_here / "wandb").exists()  # where W&B writes by default


def test_the_runs_of_several_seeds_are_a_group(wandb_here):
    for training in germline.train_seeds(
        settings(*TRACKED), "0..1", wandb_here / "both"
    ).trainings():
        finish(training)
    for seed in (0, 1):
        (folder,) = offline_runs(wandb_here / f"both/seed-{seed}")
        (begun,) = [one.run for one in records(folder) if one.HasField("run")]
        assert (begun.run_group, begun.display_name) == ("both", f"seed-{seed}")


def test_a_start_that_fails_stops_the_run_with_a_sentence(wandb_here, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    training = germline.train(settings(*TRACKED), wandb_here / "run")
    with pytest.raises(GermlineError, match=r"record.wandb=true: .*No API key.*wandb login"):
        finish(training)
    import wandb

    wandb.teardown()  # it reads its variables once
    monkeypatch.setenv("WANDB_MODE", "offline")
    resumed = germline.resume(wandb_here / "run").run()
    assert resumed.directory.journal.last_generation() == resumed.config.generations - 1


@pytest.mark.parametrize("spec", [None, ModuleSpec("wandb", None)])
def test_a_package_that_is_missing_is_named(wandb_here, monkeypatch, spec):
    # The second one is what Python finds where W&B has written a folder named `wandb`.
    monkeypatch.setattr(trackers, "find_spec", lambda _name: spec)
    with pytest.raises(GermlineError, match=r"pip install 'germline\[wandb\]'"):
        germline.train(settings(*TRACKED), wandb_here / "run")


KILLS_THE_SERVICE = """
import psutil
import germline
from tests.toy_runs import settings

training = germline.train(settings({overrides}), "run")
for record in training:
    if record.generation == 0:
        found = [one for one in psutil.Process().children() if "wandb" in one.name()]
        assert found
        for process in found:
            process.kill()
        psutil.wait_procs(found)
"""


def test_a_service_that_dies_later_does_not_end_the_run(wandb_here):
    plain = run(wandb_here / "plain", "generations=3")
    program = KILLS_THE_SERVICE.format(overrides=", ".join(map(repr, TRACKED)))
    done = python("-c", program, PYTHONPATH=str(DOCS.parent))
    assert done.stderr.count("record.wandb: Weights & Biases failed (") == 1
    assert journal(wandb_here / "run") == journal(plain)


def test_a_run_that_an_error_ends_is_a_failed_one(wandb_here, monkeypatch):
    def fail(*_arguments):
        raise OSError("disk full")

    monkeypatch.setattr("germline.record.RunDirectory.write", fail)
    with pytest.raises(OSError, match="disk full"):
        run(wandb_here / "run", *TRACKED)
    (folder,) = offline_runs(wandb_here / "run")
    assert exit_status(folder) == 1


def test_the_sweep_of_the_page_trains_a_run_of_the_agent(wandb_here, monkeypatch):
    text = (DOCS / "tuning.md").read_text(encoding="utf-8")
    block = re.search(r"`wandb-sweep.yaml`:\n\n```yml\n(.*?)```", text, re.DOTALL)
    assert block
    sweep = yaml.safe_load(block[1])
    given = [f"{name}=0.01" for name in sweep["parameters"]]  # as `wandb agent` writes them
    monkeypatch.setenv("WANDB_RUN_ID", "abc-1")
    path = run(wandb_here / "run", *TRACKED, "task.kind=arithmetic", *given)
    assert RunDirectory.open(path).config.model_dump()["strategy"]["learning_rate"] == 0.01
    (folder,) = offline_runs(path)
    assert folder.name.endswith("abc-1")
    assert sum(sweep["metric"]["name"] in row for row in history(folder)) == 3
