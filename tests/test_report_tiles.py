"""The tiles at the top of a run's page: scores, rewards, time and memory in a few words."""

from dataclasses import replace
from pathlib import Path

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.html_page import write_report
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score
from tests.test_report_page import Page


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({"generations": 4}), DIGEST, 1)


def page_text(run: RunDirectory) -> str:
    return Page(write_report(run.path)).text


@pytest.mark.parametrize("reward", [0.8, 0.0])
def test_the_page_says_what_the_reward_did_where_it_is_not_the_metric(
    run: RunDirectory, reward: float
) -> None:
    run.write(record(0), BATCH)
    for generation, value in ((0, reward / 2), (1, reward)):
        one = replace(score(generation, 0.0), reward=value)
        run.write_held_out(one, [rollout(0, 7, 0.0)], BATCH)
    assert ("mean reward 0.4 → 0.8" in page_text(run)) == (reward > 0)
    assert ("mean reward" in page_text(run)) == (reward > 0)
