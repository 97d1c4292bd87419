"""The best held-out score of a run: which it is, and that it is said wherever scores are."""

import json
import math
from dataclasses import replace

import pytest

from germline.record import RunDirectory
from germline.record.best_generation import best_score
from germline.record.metrics_rows import held_out_row
from germline.types import HeldOutScore
from tests.toy_runs import run

pytestmark = pytest.mark.usefixtures("graded_in_process")

MEANS = (0.2, 0.8, 0.8, 0.6)


def score(updates, mean, *, higher=True):
    return HeldOutScore(updates, "exact", mean, 0.05, 100, mean, higher_is_better=higher)


SCORES = [score(2 * place, mean) for place, mean in enumerate(MEANS)]


@pytest.fixture
def path(tmp_path):
    """A run that was best in the middle."""
    path = run(tmp_path / "run", "generations=6")
    rows = [json.dumps(held_out_row(one)) + "\n" for one in SCORES]
    (path / "held_out.jsonl").write_text("".join(rows))
    return path


@pytest.mark.parametrize(
    ("changes", "best"),
    [
        ({}, 2),  # the first of the highest
        ({"higher_is_better": False}, 0),
        ({"reward": math.nan}, 2),
        ({"mean": math.nan}, None),
    ],
)
def test_the_best_score_is_the_first_of_the_highest_or_of_the_lowest_cost(changes, best):
    found = best_score([replace(one, **changes) for one in SCORES])
    assert (found and found.generation) == best
    assert best_score([]) is None


def test_scores_read_back_with_their_values_and_direction(path):
    one = replace(SCORES[1], values=(1.0, math.nan, 0.0))
    (path / "held_out.jsonl").write_text(
        json.dumps(held_out_row(one)).replace("NaN", "null") + "\n"
    )
    (back,) = RunDirectory.open(path).held_out()
    assert back.score.higher_is_better is True
    assert [math.isnan(value) for value in back.score.values] == [False, True, False]


def test_a_run_records_the_metric_of_every_held_out_example(tmp_path):
    found = RunDirectory.open(run(tmp_path / "run"))
    for one in found.held_out():
        assert len(one.score.values) == one.score.n == 5
        assert sum(one.score.values) / 5 == pytest.approx(one.score.mean)
        assert one.score.higher_is_better is False  # conciseness: difference of lengths
    assert "values" not in found.generations()[1]["held_out"]
