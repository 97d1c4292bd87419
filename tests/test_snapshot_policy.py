"""Snapshots within a budget of bytes and of time; the journal does without them."""

import pytest

from germline import load_config, resume, train
from germline.checkpoint import list_snapshots
from germline.run.snapshot_policy import SnapshotPolicy, snapshots_to_keep
from tests.toy_runs import settings


class Disk:
    """A clock, and a disk on which every snapshot takes so many seconds."""

    def __init__(self, write_s: float, keep: int = 2) -> None:
        self.now = 0.0
        self.write_s = write_s
        self.written: list[int] = []
        self.snapshots = SnapshotPolicy(2, keep, self.save, lambda: self.now)

    def save(self, generation: int, keep: int) -> None:
        """Write one."""
        assert keep == 2
        self.now += self.write_s
        self.written.append(generation)

    def run(self, generations: int, generation_s: float) -> list[int]:
        """Run generations; return after which ones a snapshot was written."""
        for generation in range(generations):
            self.now += generation_s
            if self.snapshots.is_due(generation + 1):
                self.snapshots.write(generation)
        return self.written


def test_snapshots_that_cost_little_come_when_they_are_due():
    assert Disk(write_s=2.9).run(8, generation_s=0.1) == [1, 3, 5, 7]
    assert Disk(write_s=9.0).run(8, generation_s=90) == [1, 3, 5, 7]


def test_writing_large_snapshots_takes_a_twentieth_of_the_time_since_the_one_before():
    # The first one has to be written for its cost to be known: 20 x 6 s are 12 generations of 10 s.
    assert Disk(write_s=6.0).run(30, generation_s=10) == [1, 13, 25]


def test_no_snapshot_is_written_where_none_is_kept():
    assert Disk(write_s=1.0, keep=0).run(8, generation_s=1) == []


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
    digests = [record.digest for record in plain]
    run = train(settings("generations=6", "record.snapshot_gb=0"), tmp_path / "run")
    for record in run:
        if record.generation == 2:
            run.stop()
    assert list_snapshots(run.directory.snapshots) == []
    assert [record.digest for record in resume(tmp_path / "run")] == digests[3:]
