"""The run directory: the journal commits, rows describe, and a kill tears neither."""

import fcntl
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from germline.config import Config, load_config
from germline.record import HeldOutRow, HeldOutSample, Journal, RunDirectory
from germline.record.run_paths import LOCK_FILE, PAUSE_S, is_locked, run_directories
from germline.report.run_facts import RunFacts
from germline.types import GermlineError
from tests.hang_limit import HANG_S
from tests.refusals import refusal
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score, update


@pytest.fixture
def config() -> Config:
    return load_config({"generations": 10})


@pytest.fixture
def run(tmp_path: Path, config: Config) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "one", config, DIGEST, threads=2)


def test_a_run_directory_opens_as_it_was_created(run: RunDirectory, config: Config) -> None:
    again = RunDirectory.open(run.path)
    assert again.config == config
    assert again.base_digest == DIGEST
    assert again.environment == run.environment
    assert again.environment["threads"] == 2
    assert again.environment["versions"]["numpy"] == np.__version__


def test_writing_a_generation_fills_every_file(run: RunDirectory) -> None:
    run.write(record(0, held_out=score(1)), BATCH)
    assert run.journal.last_generation() == 0
    assert [row["generation"] for row in run.generations()] == [0]
    assert len(run.rollouts()) == 4
    assert run.held_out() == [HeldOutRow(score(1), ())]
    run.write(record(1, [[1.0, math.nan], [math.nan, math.nan]]), BATCH)
    last = run.journal.read()[1]
    assert (last.missing, last.absent) == (3, (1,))


def test_rows_without_their_journal_line_are_dropped(run: RunDirectory) -> None:
    run.write_held_out(score(0), [rollout(0, 7, 1.0)], BATCH)
    for generation in range(3):
        run.write(record(generation, held_out=score(generation + 1)), BATCH)
    before = {path.name: path.read_bytes() for path in run.path.glob("*.jsonl")}
    # As a process killed just before the journal line of generation 3 leaves it.
    other = RunDirectory.create(run.path.parent / "other", run.config, DIGEST, threads=1)
    for generation in range(4):
        other.write(record(generation, held_out=score(generation + 1)), BATCH)
    for name in ("generations.jsonl", "rollouts.jsonl", "held_out.jsonl"):
        extra = b"".join(
            line
            for line in (other.path / name).read_bytes().splitlines(keepends=True)
            if json.loads(line)["generation"] == (4 if name == "held_out.jsonl" else 3)
        )
        with (run.path / name).open("ab") as file:
            file.write(extra + extra[:20])
    run.release_lock()
    resumed = RunDirectory.open(run.path)
    resumed.truncate(resumed.journal.last_generation())
    assert {path.name: path.read_bytes() for path in run.path.glob("*.jsonl")} == before


def test_two_trainings_of_one_process_cannot_write_one_folder(run: RunDirectory) -> None:
    twin = RunDirectory.open(run.path)
    with pytest.raises(GermlineError, match="another training writes to this folder"):
        twin.acquire_lock()
    run.release_lock()
    twin.acquire_lock()
    twin.release_lock()


def test_held_out_scores_read_back_with_their_first_completions(run: RunDirectory) -> None:
    some = [rollout(0, 7, 1.0), rollout(0, 3, math.nan), *[rollout(0, 7, 1.0)] * 50]
    run.write_held_out(score(0, math.nan), some, BATCH)
    (row,) = run.held_out()
    assert math.isnan(row.score.mean)
    assert len(row.samples) == 20
    assert row.samples[:2] == (
        HeldOutSample("question 7?", "says 0", "answer 7", 1.0, token_ids=[1, 2]),
        HeldOutSample("question 3?", "says 0", "answer 3", None, token_ids=[1, 2]),
    )


def test_of_two_scores_of_one_generation_the_one_with_completions_is_read(run):
    run.write_held_out(score(1, 0.7), [rollout(0, 7, 1.0)], BATCH)
    run.write(record(0, held_out=score(1, 0.7)), BATCH)
    (row,) = run.held_out()
    assert row.samples


WRITER = """
import sys
from pathlib import Path
from tests.synthetic_runs import BATCH, record, score
from germline.record import RunDirectory

run = RunDirectory.open(Path(sys.argv[1]))
run.truncate(run.journal.last_generation())
for generation in range(run.journal.last_generation() + 1, 1_000_000):
    run.write(record(generation, held_out=score(generation + 1)), BATCH)
"""


def test_a_killed_writer_leaves_a_directory_that_goes_on(tmp_path: Path, config: Config) -> None:
    run = tmp_path / "run"
    RunDirectory.create(run, config, DIGEST, threads=1)  # not kept: the writers claim the folder
    chance = random.Random(0)
    seen = -1
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run)], cwd=Path(__file__).parents[1]
        )
        deadline = time.monotonic() + HANG_S
        while (
            Journal(run / "journal.jsonl").last_generation() <= seen and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        last = Journal(run / "journal.jsonl").last_generation()
        assert last > seen
        seen = last
    resumed = RunDirectory.open(run)
    resumed.truncate(seen)
    assert [row["generation"] for row in resumed.generations()] == list(range(seen + 1))
    assert [entry.update for entry in resumed.journal.read()] == [
        update(generation) for generation in range(seen + 1)
    ]


def rewrite(path: Path, **changes: object) -> None:
    facts = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(facts | changes))


@pytest.mark.parametrize("version", [1, 99])
def test_another_format_is_refused(run, version):
    rewrite(run.path, format_version=version)
    with pytest.raises(GermlineError, match=rf"version is {version},.*wrote it"):
        RunDirectory.open(run.path)
    with pytest.raises(GermlineError, match=f"format_version is {version}"):
        load_config(run.path)
    for nobodys in (None, 0, "2"):
        rewrite(run.path, format_version=nobodys)
        with pytest.raises(GermlineError, match=f"format_version is {nobodys!r}"):
            RunDirectory.open(run.path)


def test_a_config_of_another_germline_is_refused_with_its_version(run: RunDirectory) -> None:
    rewrite(run.path, config={"brightness": 3}, versions={"germline": "7.0"})
    message = refusal(RunDirectory.open, run.path)
    assert "germline 7.0 wrote this config" in message
    assert "brightness: unknown setting" in message


def test_another_process_sees_the_claim_and_asking_does_not_break_it(run: RunDirectory) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert [pool.apply(is_locked, (run.path,)) for _ in range(2)] == [True, True]
        assert is_locked(run.path)
        assert "another training writes" in pool.apply(_claim, (run.path,))
        run.release_lock()
        assert not pool.apply(is_locked, (run.path,))


def test_a_training_begins_although_another_process_just_looks_at_the_lock(run):
    run.release_lock()
    look = os.open(run.path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    threading.Timer(PAUSE_S / 2, os.close, [look]).start()
    run.acquire_lock()
    assert is_locked(run.path)


def _claim(path: Path) -> str:
    try:
        RunDirectory.open(path).acquire_lock()
    except GermlineError as error:
        return str(error)
    return "claimed"


def test_an_overview_sums_up_runs_newest_first(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.25), [], BATCH)
    run.write(record(0, held_out=score(1, 0.5)), BATCH)
    other = RunDirectory.create(run.path.parent / "two", run.config, DIGEST, threads=1)
    for generation in range(10):
        other.write(record(generation), BATCH)
    other.release_lock()
    second, first = map(RunFacts, run_directories(run.path.parent))
    assert (first.path, first.done, first.state) == (run.path, 1, "running")
    assert first.scores == [score(0, 0.25), score(1, 0.5)]
    assert (second.done, second.state, second.scores) == (10, "finished", [])


def test_an_overview_of_no_folder_says_so(tmp_path: Path) -> None:
    assert run_directories(tmp_path) == []
    with pytest.raises(GermlineError, match="there is no folder"):
        run_directories(tmp_path / "nowhere")
