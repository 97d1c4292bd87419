"""A run says once that other processes use its cores."""

import pytest
import torch

from germline.config import load_config
from germline.estimates.machine import MachineLoad
from germline.run.shared_cores import SharedCores


@pytest.fixture
def machine(monkeypatch):
    """Make up a machine of two cores, and what a measurement of it finds."""
    found = {"seconds": 20.0, "others": 0.5}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: found.get("threads", 2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(MachineLoad, "seconds", property(lambda _self: found["seconds"]))
    monkeypatch.setattr(MachineLoad, "share_of_others", lambda _self: found["others"])
    return found


def told(caplog, *overrides):
    cores = SharedCores(load_config({}, overrides))
    for _ in range(3):
        cores.tell()
    return caplog.text.count("threads of this run wait for each other")


def test_cores_that_others_use_are_told_once(machine, caplog):
    assert told(caplog) == 1
    assert "use 50 % of the cores, so the 2 threads" in caplog.text
    assert "engine.threads=1" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [{"threads": 1, "others": 0.9}, {"others": 0.2}, {"seconds": 5.0}],
    ids=["one thread", "enough cores", "too short"],
)
def test_nothing_is_told_where_no_thread_waits(machine, caplog, changes):
    machine |= changes
    assert told(caplog) == 0


@pytest.mark.parametrize("elsewhere", ["engine=toy", "fleet.engines=2", "fleet=ray"])
def test_nothing_is_told_of_engines_elsewhere(machine, caplog, elsewhere):
    assert told(caplog, elsewhere) == 0


def test_a_load_that_comes_later_is_told(machine, caplog):
    cores = SharedCores(load_config({}))
    machine["others"] = 0.0
    cores.tell()
    assert not caplog.text
    machine["others"] = 0.9
    cores.tell()
    assert "use 90 % of the cores" in caplog.text
