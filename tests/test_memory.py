"""Peak memory: what a process held at once, its own and not its parent's."""

import subprocess
import sys

import numpy as np

from germline.record import RunDirectory
from germline.run import memory
from tests.toy_runs import run


def test_the_peak_grows_by_what_was_held_and_stays_when_it_is_let_go():
    before = memory.peak_memory_mb()["host"]
    ballast = np.ones(int((before + 200) * 1e6 / 8))
    held = memory.peak_memory_mb()["host"]
    assert held > before + 200
    del ballast
    assert memory.peak_memory_mb()["host"] > held - 10  # the kernel counts in batches


def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it():
    script = "import runpy, sys; print(runpy.run_path(sys.argv[1])['_host_bytes']())"
    command = [sys.executable, "-c", script, memory.__file__]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(printed) < 100e6 < memory.peak_memory_mb()["host"] * 1e6


def test_a_run_records_the_peak_of_memory_and_the_time(tmp_path):
    [first, *_] = RunDirectory.open(run(tmp_path / "run")).generations()
    assert 10 < first["peak_memory_mb"]["host"] < 1e6
    assert first["written_at"].endswith("+00:00")
    assert first["rollouts"] == 6 * 4


def test_held_out_scores_have_a_time_of_their_own(tmp_path):
    rows = RunDirectory.open(run(tmp_path / "run")).generations()
    assert ["held_out_s" in row["timing"] for row in rows] == [False, True, False, False]
