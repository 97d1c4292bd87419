"""The processes of a study: an error stops all, and none outlives the study."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from germline.config.config_files import as_yaml
from germline.record import RunDirectory
from germline.record.run_paths import is_locked
from germline.studies.run_processes import RunProcesses
from germline.types import GermlineError
from tests.hang_limit import HANG_S
from tests.toy_runs import SETTINGS


def test_an_error_of_a_worker_stops_the_others() -> None:
    processes = RunProcesses()

    def work(item: int) -> None:
        if item:
            raise GermlineError("no space left")
        until = time.monotonic() + HANG_S
        while not processes.is_stopping and time.monotonic() < until:
            time.sleep(0.01)
        assert processes.is_stopping

    with pytest.raises(GermlineError, match="no space left"):
        processes.in_threads(work, range(2), 2)


def test_a_training_ends_with_the_study_that_is_killed(tmp_path: Path) -> None:
    file, run = tmp_path / "toy.yaml", tmp_path / "seed-0"
    file.write_text(as_yaml(SETTINGS | {"generations": 10**6}))
    code = (
        "from pathlib import Path; from germline.config import load_config; "
        "from germline.studies.run_processes import RunProcesses; "
        f"file = {str(file)!r}; "
        f"RunProcesses().train(load_config(file), file, [], Path({str(run)!r}))"
    )
    study = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + HANG_S
    while not (run / "generations.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert is_locked(run)
    study.send_signal(signal.SIGKILL)
    study.wait()
    while is_locked(run) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_locked(run)
    assert RunDirectory.open(run).lost_generations == range(0)  # the last one was finished
