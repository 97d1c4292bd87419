"""Opening run directories: older ones go on, newer ones and folders in use say what to do."""

import json
import multiprocessing
from pathlib import Path

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.record.list_runs import RunSummary, UnreadableRun, list_runs
from germline.record.lock import is_locked
from germline.types import GermlineError
from tests.synthetic_runs import BATCH, DIGEST, record, score


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    config = load_config({"generations": 2, "task": "arithmetic"})
    return RunDirectory.create(tmp_path / "runs" / "one", config, DIGEST, threads=1)


def rewrite(path: Path, **changes: object) -> None:
    facts = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(facts | changes))


# --- versions


@pytest.mark.parametrize("version", [1, 99])
def test_another_format_is_refused_with_the_version_that_reads_it(
    run: RunDirectory, version: int
) -> None:
    rewrite(run.path, format_version=version, versions={"germline": "7.0"})
    with pytest.raises(GermlineError, match=rf"version is {version},.*wrote it \(7\.0\)"):
        RunDirectory.open(run.path)
    with pytest.raises(GermlineError, match=r"wrote it \(7\.0\)"):
        load_config(run.path)


@pytest.mark.parametrize("version", [None, 0, "2"])
def test_a_version_nobody_wrote_is_refused(run: RunDirectory, version: object) -> None:
    rewrite(run.path, format_version=version)
    with pytest.raises(GermlineError, match=f"format_version is {version!r}"):
        RunDirectory.open(run.path)


def test_a_config_of_another_germline_is_refused_with_its_version(run: RunDirectory) -> None:
    rewrite(run.path, config={"brightness": 3}, versions={"germline": "7.0"})
    with pytest.raises(GermlineError) as caught:
        RunDirectory.open(run.path)
    assert "germline 7.0 wrote this config" in str(caught.value)
    assert "brightness: unknown setting" in str(caught.value)


# --- one writer


def test_a_folder_is_claimed_while_this_process_writes_to_it(run: RunDirectory) -> None:
    assert is_locked(run.path)
    run.release_lock()
    assert not is_locked(run.path)


def test_another_process_sees_the_claim_and_asking_does_not_break_it(run: RunDirectory) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert [pool.apply(is_locked, (run.path,)) for _ in range(2)] == [True, True]
        assert is_locked(run.path)
        assert pool.apply(is_locked, (run.path,))
        run.release_lock()
        assert not pool.apply(is_locked, (run.path,))


# --- overview


def test_an_overview_sums_up_runs_newest_first(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.25), [], BATCH)
    run.write(record(0, held_out=score(1, 0.5)), BATCH)
    other = RunDirectory.create(run.path.parent / "two", run.config, DIGEST, threads=1)
    other.write(record(0), BATCH)
    other.write(record(1), BATCH)
    other.release_lock()
    second, first = list_runs(run.path.parent)
    assert isinstance(first, RunSummary)
    assert isinstance(second, RunSummary)
    assert (first.path, first.task, first.model) == (run.path, "arithmetic", "nano")
    assert (first.done, first.total, first.state) == (1, 2, "running")
    assert (first.start, first.newest) == (score(0, 0.25), score(1, 0.5))
    assert 0 <= first.age_s < 60
    assert (second.done, second.state, second.start, second.newest) == (2, "finished", None, None)


def test_a_run_that_nobody_writes_to_before_its_end_is_stopped(run: RunDirectory) -> None:
    run.release_lock()
    (summary,) = list_runs(run.path)
    assert isinstance(summary, RunSummary)
    assert (summary.done, summary.state) == (0, "stopped")


def test_an_overview_says_what_cannot_be_read_and_goes_on(run: RunDirectory) -> None:
    broken = run.path.parent / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    (run.path.parent / "not-a-run").mkdir()
    found = {type(one): one for one in list_runs(run.path.parent)}
    assert set(found) == {RunSummary, UnreadableRun}
    assert "is damaged" in str(found[UnreadableRun])


def test_an_overview_of_no_folder_says_so(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    with pytest.raises(GermlineError, match="there is no folder"):
        list_runs(tmp_path / "nowhere")
