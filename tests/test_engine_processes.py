"""Engines in processes of their own: the same run, whatever is killed, and nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import germline
from germline.config import InProcess, load_config
from germline.fleet.engine_processes import EngineProcess, wait_for_outcome
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_pool import WorkerPool
from germline.record import RunDirectory
from germline.run.build_fleet import engine_placement
from germline.types import GermlineError, Update
from tests import loaded_engines
from tests.hang_limit import wait_until
from tests.loaded_engines import divide, refuse
from tests.remote_engines import (
    CONFIG,
    TASK,
    UPDATES,
    after_its_next_job,
    alive,
    assert_same,
    evaluated,
    local,
)
from tests.toy_runs import (
    ADAM_FULL,
    SETTINGS,
    GradedHere,
    finish,
    journal,
    run,
    settings,
    stopped_after,
)

ROOT = Path(__file__).parents[1]


def fleet_of(*loads):
    processes = [EngineProcess(number, load) for number, load in enumerate(loads)]
    fleet = RemoteFleet(
        WorkerPool(processes, wait_for_outcome), GradedHere(TASK), CONFIG.microbatch
    )
    return fleet, processes


@pytest.fixture(scope="module")
def pair():
    """Two processes, started once: every test leaves both ready."""
    fleet, processes = fleet_of(loaded_engines.talkative, loaded_engines.talkative)
    yield fleet, processes
    fleet.close()


@pytest.fixture(scope="module")
def alone():
    """The same moves on one engine here."""
    return local()


@pytest.fixture
def started(monkeypatch):
    """Process ids of all engines that this test starts."""
    pids = []
    start = EngineProcess.start

    def watched(process):
        start(process)
        pids.append(process.process()._popen.pid)

    monkeypatch.setattr(EngineProcess, "start", watched)
    return pids


def test_a_run_gone_on_with_two_engines_has_the_same_journal(tmp_path, started):
    mixed = stopped_after(germline.train(SETTINGS, tmp_path / "mixed"), 2)
    training = germline.resume(mixed, ["fleet.engines=2"])
    assert [alive(pid) for pid in started] == [True] * 2
    finish(training)
    assert not any(alive(pid) for pid in started)
    assert journal(mixed) == journal(run(tmp_path / "alone"))


def test_a_quorum_goes_on_without_a_process_that_stands_still(tmp_path, started):
    """The journal says which members are absent, and replay needs nothing of them.

    The quorum holds for generation 1 alone, where one process is stopped: in the others a process
    that the system lets wait would be late as well. No process hangs by the clock of the machine.
    """
    fleet = "fleet={engines: 2, quorum: 0.6}"
    training = germline.train(
        settings(*ADAM_FULL, fleet, "strategy.antithetic=false"), tmp_path / "run"
    )
    remote = training._parts.fleet
    assert isinstance(remote, RemoteFleet)
    remote.quorum = 1.0
    for record in training:
        remote.quorum = 0.6 if record.generation == 0 else 1.0
        if record.generation == 0:
            os.kill(started[1], signal.SIGSTOP)
        if record.generation == 2:
            os.kill(started[1], signal.SIGCONT)
    entries = training.directory.journal.read()
    # Of six microbatches the stopped process holds the second: members 2 and 3.
    assert [entry.absent for entry in entries] == [(), (2, 3), (), ()]
    for entry in entries:
        assert isinstance(entry.update, Update)
        silent = [place for place, one in enumerate(entry.update.coefficients) if one == 0.0]
        assert set(entry.absent) <= set(silent)
    assert germline.replay(tmp_path / "run", 3) == entries[3].digest
    assert len(started) == 2


def test_a_run_that_is_refused_leaves_no_process_behind(tmp_path, started):
    folder = run(tmp_path / "run")
    base = RunDirectory.open(folder).base_digest
    facts = (folder / "run.json").read_text()
    (folder / "run.json").write_text(facts.replace(base, "0" * 64))
    with pytest.raises(GermlineError, match="the base model is not the one"):
        germline.resume(folder, ["generations=9", "fleet.engines=2"])
    assert len(started) == 2
    assert not any(alive(pid) for pid in started)


def test_a_process_killed_while_it_plays_changes_nothing_and_comes_back(pair, alone, caplog, capfd):
    fleet, processes = pair
    # Stopped, it takes a microbatch and cannot finish it; then it is killed.
    pid = processes[1].process()._popen.pid
    os.kill(pid, signal.SIGSTOP)
    after_its_next_job(processes[1], lambda: os.kill(pid, signal.SIGKILL))
    assert_same(evaluated(fleet), evaluated(alone))
    assert "lost engine 1: it ended with SIGKILL" in caplog.text
    # What it printed is told now, and was not mixed into ours.
    assert "engine says hello" in caplog.text
    assert "hello" not in "".join(capfd.readouterr())
    for one in (fleet, alone):
        one.apply(UPDATES[0])
    assert fleet.digest() == alone.digest()
    while len(fleet.pool.ready_slots()) < 2:
        assert_same(evaluated(fleet), evaluated(alone))
    assert "engine 1 is back" in caplog.text
    assert_same(evaluated(fleet), evaluated(alone))


def test_ctrl_c_does_not_reach_the_processes(pair, alone):
    """They are in no group of ours, and one that is sent the signal all the same goes on."""
    fleet, processes = pair
    pids = [one.process()._popen.pid for one in processes]
    assert os.getpgrp() not in {os.getpgid(pid) for pid in pids}
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    assert_same(evaluated(fleet), evaluated(alone))
    assert [one.process()._popen.pid for one in processes] == pids


def test_an_error_of_a_job_arrives_any_other_with_its_traceback(pair, alone):
    with pytest.raises(GermlineError, match=r"^task: the longest prompt is too long$"):
        pair[0].pool.broadcast(refuse)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*in divide.*ZeroDivisionError"):
        pair[0].pool.broadcast(divide)
    assert_same(evaluated(pair[0]), evaluated(alone))


@pytest.mark.parametrize(
    ("load", "error", "message"),
    [
        (loaded_engines.refused, GermlineError, r"^model: 'nowhere' has no config\.json$"),
        (loaded_engines.broken, RuntimeError, r"(?s)Traceback.*ZeroDivisionError: of a module"),
    ],
)
def test_an_engine_that_cannot_be_loaded_says_why_and_leaves_nothing(load, error, message, started):
    with pytest.raises(error, match=message):
        fleet_of(load)
    assert [alive(pid) for pid in started] == [False]


PARENT = """
import sys, threading
from germline.fleet.worker_pool import WorkerPool
from germline.fleet.engine_processes import EngineProcess, wait_for_outcome
from tests.loaded_engines import sleep, toy
processes = [EngineProcess(number, toy) for number in range(2)]
pool = WorkerPool(processes, wait_for_outcome)
pool.wait_ready()
processes[0].send(sleep)
print(*(one.process()._popen.pid for one in processes), flush=True)
threading.Event().wait()
"""


def test_killing_the_parent_ends_every_process_idle_or_at_work():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        parent.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids))


def config(*overrides):
    return load_config({"engine": {"threads": 1}}, overrides)


@pytest.mark.parametrize(
    ("gpus", "overrides", "expected"),
    [
        (0, [], ["auto"] * 3),
        (2, [], ["cuda:0", "cuda:1"] * 2),
        (2, ["engine.device=cpu"], ["cpu", "cpu"]),
    ],
)
def test_engines_take_gpus_in_turn(gpus, overrides, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    several = config(f"fleet.engines={len(expected)}", *overrides)
    placed = [engine_placement(several, number).engine for number in range(len(expected))]
    assert [engine.device for engine in placed if isinstance(engine, InProcess)] == expected
