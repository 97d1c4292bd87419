"""Runs that start Ray or join a cluster: what they started ends with them, however they end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray

import germline
from germline.record import RunDirectory
from tests.hang_limit import HANG_S, wait_until
from tests.toy_runs import ADAM_FULL, SETTINGS, finish, journal, run, settings, stopped_after

pytest.importorskip("ray", reason="the extra `ray` is not installed")

MANY = "generations=100000"


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_session(leader: int) -> list[str]:
    """Name the processes of a session, its leader left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == leader != process.pid and process.status() != "zombie":
                found.append(" ".join(process.cmdline()))
    return found


def engines_in_session(leader: int) -> list[str]:
    return [command for command in in_session(leader) if command.startswith("ray::RayEngineActor")]


@pytest.fixture
def begun(tmp_path):
    """A run of many generations on Ray, in a session of its own, some of them done."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(SETTINGS))
    command = [sys.executable, "-m", "germline", "train", str(config), *ADAM_FULL, MANY]
    process = subprocess.Popen(
        [*command, "fleet={kind: ray, engines: 2}", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: lines(tmp_path / "run" / "journal.jsonl") >= 2 or process.poll() is not None)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_ctrl_c_finishes_the_generation_and_ends_ray(begun, tmp_path):
    # To the whole group, as a terminal sends it.
    os.killpg(begun.pid, signal.SIGINT)
    said, complaints = begun.communicate(timeout=HANG_S)
    assert "Resume with: germline resume" in said, complaints
    assert "Traceback" not in complaints
    assert in_session(begun.pid) == []
    done = lines(tmp_path / "run" / "journal.jsonl")
    alone = run(tmp_path / "alone", *ADAM_FULL, f"generations={done + 1}")
    # The run goes on without Ray.
    finish(germline.resume(tmp_path / "run", ["fleet.kind=local", f"generations={done + 1}"]))
    assert journal(tmp_path / "run") == journal(alone)
    last = RunDirectory.open(alone).journal.read()[-1]
    assert germline.replay(tmp_path / "run", done) == last.digest


@pytest.mark.slow
def test_killing_a_run_ends_its_engines(begun):
    """Ray's own processes follow within a minute, when they miss each other."""
    assert len(engines_in_session(begun.pid)) == 2
    begun.kill()
    begun.communicate()
    wait_until(lambda: not engines_in_session(begun.pid))


# What Ray leaves to the garbage collector is its own business.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_a_running_cluster_is_joined_by_its_address(tmp_path):
    """A run begun here and gone on with there has the journal of one that never moved."""
    from ray.cluster_utils import Cluster

    moved = stopped_after(germline.train(settings(*ADAM_FULL), tmp_path / "moved"), 2)
    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        fleet = f"fleet={{kind: ray, engines: 2, address: '{cluster.address}'}}"
        finish(germline.resume(moved, [fleet]))
    finally:
        cluster.shutdown()
    assert not ray.is_initialized()
    assert journal(moved) == journal(run(tmp_path / "alone", *ADAM_FULL))
