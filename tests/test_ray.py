"""Engines as Ray actors, on a real cluster of this machine: the same run, whatever happens to it.

The cluster and a pair of engines are started once: every test leaves both engines ready.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import germline
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_pool import WorkerPool
from germline.record import RunDirectory
from germline.types import GermlineError
from tests import loaded_engines
from tests.hang_limit import HANG_S, wait_until
from tests.loaded_engines import process_id
from tests.remote_engines import (
    CONFIG,
    TASK,
    UPDATES,
    after_its_next_job,
    assert_same,
    evaluated,
    local,
)
from tests.toy_runs import ADAM_FULL, SETTINGS, GradedHere, finish, journal, run

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

# What Ray leaves to the garbage collector is its own business.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def joined():
    """A cluster with room for two engines, as a script may have joined it before a run."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    before = signal.getsignal(signal.SIGTERM)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    signal.signal(signal.SIGTERM, before)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def pair(joined):
    from germline.fleet.ray_engines import RayEngine, resources_report, wait_for_outcome

    asked = {"CPU": 1.0}
    engines = [RayEngine(number, loaded_engines.talkative, asked) for number in range(2)]
    pool = WorkerPool(engines, wait_for_outcome, resources_report=lambda: resources_report(asked))
    fleet = RemoteFleet(pool, GradedHere(TASK), CONFIG.microbatch, shares_disk=False)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def alone():
    return local()


def test_another_cluster_than_the_one_a_script_has_joined_is_refused(joined):
    from germline.fleet.ray_engines import RayCluster

    with pytest.raises(GermlineError, match=rf"fleet\.address=10\.0\.0\.7:6379.*{joined.address}"):
        RayCluster("10.0.0.7:6379", 1)
    for address in (None, "auto", joined.address):
        RayCluster(address, 1).close()
    assert ray.is_initialized()


def test_two_actors_play_and_apply_like_one_engine_here(pair, alone, capfd):
    assert_same(evaluated(pair), evaluated(alone))
    for one in (pair, alone):
        one.apply(UPDATES[0])
    assert pair.digest() == alone.digest()
    assert "hello" not in "".join(capfd.readouterr())


def test_an_actor_killed_while_it_plays_changes_nothing_and_comes_back(pair, alone, caplog):
    found = pair.pool.broadcast(process_id)
    (slot,) = [slot for slot in found if slot.remote.name == "engine 1"]
    # Stopped, it takes a microbatch and cannot finish it; then it is killed.
    os.kill(found[slot], signal.SIGSTOP)
    after_its_next_job(slot.remote, lambda: os.kill(found[slot], signal.SIGKILL))
    assert_same(evaluated(pair), evaluated(alone))
    assert "lost engine 1: " in caplog.text
    while len(pair.pool.ready_slots()) < 2:
        assert_same(evaluated(pair), evaluated(alone))
    assert_same(evaluated(pair), evaluated(alone))
    assert "engine 1 is back" in caplog.text


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


def test_killing_a_run_ends_its_engines(begun):
    """Ray's own processes follow within a minute, when they miss each other."""
    assert len(engines_in_session(begun.pid)) == 2
    begun.kill()
    begun.communicate()
    wait_until(lambda: not engines_in_session(begun.pid))
