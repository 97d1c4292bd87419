"""Every member's reward on every example, where a run records them."""

from pathlib import Path

import numpy as np
import pytest

import germline
from germline.record import RunDirectory
from tests.toy_runs import run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

KEPT = "record.rewards=true"


def test_the_rewards_of_a_generation_have_the_fitness_that_the_run_recorded(tmp_path: Path) -> None:
    directory = RunDirectory.open(run(tmp_path / "run", KEPT))
    for row in directory.generations():
        with np.load(directory.rewards / f"{row['generation']:06}.npz") as kept:
            assert kept["rewards"].shape == (6, len(kept["examples"]))
            assert kept["rewards"].mean() == pytest.approx(row["fitness"]["mean"])
    shown = [one for one in directory.rollouts() if one["generation"] == 0]
    with np.load(directory.rewards / "000000.npz") as first:
        for one in shown:
            (place,) = np.flatnonzero(first["examples"] == one["example"])
            assert first["rewards"][one["member"], place] == one["reward"]
    plain = run(tmp_path / "plain")
    assert not (plain / "rewards").exists()
    assert (plain / "journal.jsonl").read_bytes() == (directory.path / "journal.jsonl").read_bytes()


def test_a_resumed_run_has_the_files_of_a_run_in_one_go(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", KEPT)
    stopped = stopped_after(germline.train(settings(KEPT), tmp_path / "stopped"), 2)
    uncommitted = stopped / "rewards" / "000099.npz"
    uncommitted.write_bytes(b"of a killed run")
    germline.resume(stopped).run()
    files = {one.name: one.read_bytes() for one in (whole / "rewards").iterdir()}
    assert files == {one.name: one.read_bytes() for one in (stopped / "rewards").iterdir()}
    assert sorted(files) == [f"{n:06}.npz" for n in range(4)]
