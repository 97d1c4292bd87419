"""Runs that collapse: a score far below its start, and members worse than the center."""

import pytest

from germline.config import load_config
from germline.evaluation.held_out import score_of_values
from germline.record.metrics_rows import generation_row
from germline.report.findings import Recorded, find, find_in_rows
from tests.test_findings import CONFIG, NOTHING, codes, made, one, values_scores


@pytest.mark.parametrize("higher", [True, False])
def test_a_collapse_is_found_where_a_decline_is_not_certain(higher):
    """Seen on nano: 9 of 30 right, then none of 30 at four scores (PPO at a rate of 0.03)."""
    values = [[1.0] * 9 + [0.0] * 21] + [[0.0] * 30] * 4
    scores = [
        score_of_values(
            2 * n, "exact", [one if higher else 1 - one for one in some], higher_is_better=higher
        )
        for n, some in enumerate(values)
    ]
    assert codes(scores=scores[:2]) == ["decline"]
    found = one(scores=scores)
    assert (found.code, found.level) == ("collapse", "warning")
    before, now = ("0.3", "0") if higher else ("0.7", "1")
    assert f"has collapsed: {before} before training, {now} after 8 updates" in found.sentence
    assert "a lower learning rate or sigma;" in found.sentence
    frozen = load_config({}, ["strategy={population: 6, sigma: 0.3}", "method=randopt"])
    assert [one.code for one in find(Recorded(frozen, scores=scores))] == ["not_learned"]


def test_a_small_loss_is_no_collapse():
    before, after = [1.0] * 140 + [0.0] * 60, [1.0] * 125 + [0.0] * 75  # .70 -> .62
    scores = values_scores(before, after) + 3 * values_scores(after, after)
    assert codes(scores=scores) == ["not_learned"]


def test_members_that_earn_less_than_the_center_need_a_smaller_sigma():
    scores = values_scores([1.0, 0.0], [1.0, 0.0])
    silent_rows = [generation_row(made(g, NOTHING, zeros_in_a_row=g + 1)) for g in range(3)]
    for row_of_members in silent_rows:
        row_of_members["fitness"] = {"mean": 0.1, "max": 0.2}
    found = find_in_rows(Recorded(CONFIG, silent_rows, scores))
    assert "else use a smaller sigma, as the center earns 0.5." in found[0].sentence
    assert "else use a larger sigma" in one(silent_rows).sentence
