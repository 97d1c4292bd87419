"""Engines as Ray actors, on a real cluster of this machine: the same run, whatever happens to it.

The cluster and a pair of engines are started once: every test leaves both engines ready.
"""

import contextlib
import os
import signal

import pytest

from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_pool import WorkerPool
from germline.types import GermlineError
from tests import loaded_engines
from tests.loaded_engines import Whereabouts
from tests.remote_engines import (
    CONFIG,
    TASK,
    UPDATES,
    after_its_next_job,
    assert_same,
    evaluated,
    local,
)
from tests.toy_runs import GradedHere

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

# What Ray leaves to the garbage collector is its own business.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NODE = {"include_dashboard": False, "object_store_memory": 80_000_000}
"""Small: only states pass through the store."""


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one node with room for two engines; tests may add nodes and remove them."""
    from ray.cluster_utils import Cluster as Nodes

    cluster = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, **NODE})
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def joined(cluster):
    """The cluster, as a script may have joined it before it begins a run."""
    before = signal.getsignal(signal.SIGTERM)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    signal.signal(signal.SIGTERM, before)
    yield cluster
    ray.shutdown()


@pytest.fixture(scope="module")
def away(joined):
    """Nodes beside the head, newest last, each with room for one engine that must be there."""
    nodes = [joined.add_node(num_cpus=1, resources={"away": 1}, **NODE)]
    yield nodes
    for node in nodes:
        joined.remove_node(node)


def fleet_of(*loads, needs=(), **terms):
    """Put engines into a fleet; each has a CPU unless it needs something else as well."""
    from germline.fleet.ray_engines import (
        RayEngine,
        resources_report,
        wait_for_outcome,
    )

    asked = [{"CPU": 1.0, **need} for need in (*needs, *[{}] * (len(loads) - len(needs)))]
    engines = [RayEngine(number, load, asked[number]) for number, load in enumerate(loads)]
    pool = WorkerPool(
        engines, wait_for_outcome, resources_report=lambda: resources_report(asked[-1]), **terms
    )
    return RemoteFleet(pool, GradedHere(TASK), CONFIG.microbatch, shares_disk=False)


@contextlib.contextmanager
def closing(fleet):
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def pair(away):
    """Engine 0 is on any node, engine 1 away from the head."""
    loads = [loaded_engines.talkative] * 2
    with closing(fleet_of(*loads, needs=({}, {"away": 1.0}))) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def alone():
    return local()


def pids(fleet):
    """Process ids by place, once both engines are ready."""
    while len(fleet.pool.ready_slots()) < 2:
        evaluated(fleet)
    found = fleet.pool.broadcast(Whereabouts())
    return [found[slot] for slot in sorted(found, key=lambda slot: slot.remote.name)]


def until_all_are_ready(fleet, alone):
    while len(fleet.pool.ready_slots()) < 2:
        assert_same(evaluated(fleet), evaluated(alone))
    assert_same(evaluated(fleet), evaluated(alone))


def kill_during_its_next_job(fleet, name, pid, kill):
    """Stop a process, so that it takes a microbatch and cannot finish it; then kill it."""
    (slot,) = [slot for slot in fleet.pool.ready_slots() if slot.remote.name == name]
    os.kill(pid, signal.SIGSTOP)
    after_its_next_job(slot.remote, kill)


# --- runs


def test_another_cluster_than_the_one_a_script_has_joined_is_refused(joined):
    from germline.fleet.ray_engines import RayCluster

    with pytest.raises(GermlineError, match=rf"fleet\.address=10\.0\.0\.7:6379.*{joined.address}"):
        RayCluster("10.0.0.7:6379", 1)
    for address in (None, "auto", joined.address):
        RayCluster(address, 1).close()
    assert ray.is_initialized()


# --- one pair of engines, treated badly


def test_two_actors_play_and_apply_like_one_engine_here(pair, alone, capfd):
    assert_same(evaluated(pair), evaluated(alone))
    for one in (pair, alone):
        one.apply(UPDATES[0])
    assert pair.digest() == alone.digest()
    assert "hello" not in "".join(capfd.readouterr())


def test_an_actor_killed_while_it_plays_changes_nothing_and_comes_back(pair, alone, caplog):
    pid = pids(pair)[1]
    kill_during_its_next_job(pair, "engine 1", pid, lambda: os.kill(pid, signal.SIGKILL))
    assert_same(evaluated(pair), evaluated(alone))
    assert "lost engine 1: " in caplog.text
    until_all_are_ready(pair, alone)
    assert "engine 1 is back" in caplog.text


def test_an_engine_whose_node_is_removed_waits_for_another(pair, away, joined, alone, caplog):
    pid = pids(pair)[1]
    node = away.pop()

    def remove():
        joined.remove_node(node, allow_graceful=False)
        os.kill(pid, signal.SIGKILL)  # stopped, it would outlive its node

    kill_during_its_next_job(pair, "engine 1", pid, remove)
    assert_same(evaluated(pair), evaluated(alone))
    for one in (pair, alone):
        one.apply(UPDATES[1])
    assert pair.digest() == alone.digest()
    assert [slot.remote.name for slot in pair.pool.ready_slots()] == ["engine 0"]
    away.append(joined.add_node(num_cpus=1, resources={"away": 1}, **NODE))
    until_all_are_ready(pair, alone)
    assert len(pids(pair)) == 2
