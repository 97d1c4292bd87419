"""Snapshots within a budget of bytes; the journal does without them."""

from dataclasses import replace

import pytest

from germline import load_config, resume, train
from germline.checkpoint import list_snapshots
from germline.run.observers import Snapshots, snapshots_to_keep
from tests.synthetic_runs import record
from tests.toy_runs import settings

pytestmark = pytest.mark.usefixtures("graded_in_process")


@pytest.mark.parametrize(("keep", "expected"), [(2, [1, 3, 5, 7]), (0, [])])
def test_snapshots_come_when_they_are_due_if_any_is_kept(keep: int, expected: list[int]) -> None:
    written: list[int] = []
    snapshots = Snapshots(2, keep, lambda generation, _: written.append(generation))
    for generation in range(8):
        snapshots.on_generation(replace(record(generation), generations=99))
    assert written == expected


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        ((), 2),
        (("record.snapshot_gb=null", "record.keep_snapshots=5"), 5),
        (("record.snapshot_gb=1",), 2),
        (("record.snapshot_gb=0.5",), 1),
        (("record.snapshot_gb=0.3",), 0),
        # Moments of adam are two numbers more: 1.2 GB each.
        (("record.snapshot_gb=2.3", "strategy.optimizer=adam"), 1),
        # What followed a gradient cannot be replayed.
        (("record.snapshot_gb=0.3", "method=es_sample_gd", "engine=inprocess"), 1),
    ],
)
def test_as_many_snapshots_are_kept_as_fit_the_budget(overrides, kept):
    settings = {"space": "full", "strategy": {"learning_rate": 0.01}}
    assert snapshots_to_keep(load_config(settings, overrides), 100_000_000) == kept


def test_a_run_without_room_for_snapshots_resumes_to_the_same_digest(tmp_path):
    plain = train(settings("generations=6"), tmp_path / "plain")
    digests = [one.digest for one in plain]
    run = train(settings("generations=6", "record.snapshot_gb=0"), tmp_path / "run")
    for one in run:
        if one.generation == 2:
            run.stop()
    assert list_snapshots(run.directory.snapshots) == []
    assert [one.digest for one in resume(tmp_path / "run")] == digests[3:]


def test_an_early_stop_writes_its_snapshot_before_the_caller_may_leave_the_loop(tmp_path):
    early = (
        "generations=40",
        "held_out.every=1",
        "held_out.patience=1",
        "record.snapshot_every=99",
    )
    run = train(settings(*early), tmp_path / "run")
    last = next(one for one in run if run.directory.stopped_by)
    (snapshot,) = list_snapshots(run.directory.snapshots)
    assert last.generation < 39
    assert snapshot.stem.endswith(str(last.generation))
