"""The best held-out score of a run, and a run that ends once its score no longer improves."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.record import RunDirectory
from germline.record.early_stopping import best_score, early_stop
from germline.report.run_facts import list_runs
from germline.types import GermlineError, HeldOutScore
from tests.command_line import command

pytestmark = pytest.mark.usefixtures("graded_in_process")

ONE_SCORE_A_GENERATION = {
    "engine": "toy",
    "task": "conciseness",
    "batch_size": 2,
    "generations": 12,
    "held_out": {"every": 1, "examples": 4},
    "record": {"tensorboard": False},
}


def scores(*means: float) -> list[HeldOutScore]:
    return [
        HeldOutScore(g, "right", mean, 0.0, 4, mean, proportion=True, higher_is_better=True)
        for g, mean in enumerate(means)
    ]


@pytest.mark.parametrize(
    ("changes", "best"),
    [
        ({}, 1),  # the first of the highest
        ({"higher_is_better": False}, 0),
        ({"reward": math.nan}, 1),
        ({"mean": math.nan}, None),
    ],
)
def test_the_best_score_is_the_first_of_the_highest_or_of_the_lowest_cost(changes, best):
    found = best_score([replace(one, **changes) for one in scores(0.2, 0.8, 0.8, 0.6)])  # type: ignore[arg-type]
    assert (found and found.generation) == best
    assert best_score([]) is None


def frozen(**changes: object) -> dict[str, object]:
    """Return a config whose weights never move, so that no score is better than the first."""
    strategy = {"population": 4, "sigma": 0.1, "learning_rate": 1e-12}
    return {**ONE_SCORE_A_GENERATION, "strategy": strategy, **changes}


def trained(path: Path, **changes: object) -> RunDirectory:
    training = germline.train(frozen(**changes), out=path)
    list(training)
    return training.directory


def test_patience_counts_the_scores_after_the_best_one() -> None:
    assert early_stop(scores(0.1, 0.5, 0.4), 2) is None
    ending = early_stop(scores(0.1, 0.5, 0.4, 0.5), 2)
    assert ending is not None
    assert "better than that after 1 update" in ending.reason
    assert early_stop(scores(0.1, 0.5, 0.4, 0.6), 2) is None
    assert early_stop(scores(0.1, 0.1, 0.1, 0.1), None) is None


def test_a_score_that_could_not_be_computed_counts_as_not_better() -> None:
    assert early_stop(scores(0.1, np.nan, np.nan), 2) is not None
    assert early_stop(scores(np.nan, np.nan, np.nan), 2) is None


def test_a_run_stops_early_and_says_so(tmp_path: Path) -> None:
    directory = trained(tmp_path / "run", held_out={"every": 1, "examples": 4, "patience": 3})
    assert directory.journal.last_generation() + 1 == 3
    assert directory.ending is not None
    assert directory.ending.setting == "held_out.patience=3"
    assert "better than that after 0 updates" in directory.ending.reason
    assert directory.held_out()[-1].samples  # the report shows the answers of the last weights
    (summary,) = list_runs(tmp_path)
    assert getattr(summary, "state", None) == "finished"
    assert "\tstopped early\t" in command("list", "runs", tmp_path).output
    assert "stopped early" in directory.report.read_text()


def test_patience_changes_no_digest_and_a_larger_one_trains_on(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole").journal.read()
    early = trained(tmp_path / "early", held_out={"every": 1, "examples": 4, "patience": 3})
    with pytest.raises(GermlineError, match=r"patience=3: the run stopped early.*patience=6"):
        germline.resume(early.path)
    list(germline.resume(early.path, ["held_out.patience=null"]))
    assert [one.digest for one in RunDirectory.open(early.path).journal.read()] == [
        one.digest for one in whole
    ]
