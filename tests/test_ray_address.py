"""A run that joins a running cluster; tests/test_ray.py keeps one joined, and a process has one."""

import pytest

import germline
from tests.toy_runs import ADAM_FULL, finish, journal, run, settings, stopped_after

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")


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
