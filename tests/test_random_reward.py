"""A reward that is not deterministic is said by the summary of a run, its report and its page."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from germline.cli.application import app
from germline.cli.train_summary import print_result
from germline.config import load_config
from germline.record import RunDirectory
from germline.report.html_page import write_report
from germline.report.random_reward import random_reward
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score
from tests.test_next_commands import printed_lines

SAID = "The reward is not deterministic: in generation 2 members 0 and 1 gave the same answer"


def row(member=0, reward=0.0, generation=2, **changes):
    """Make up a row of rollouts.jsonl."""
    return {
        "generation": generation,
        "member": member,
        "example": 7,
        "completion": "4",
        "tokens": 2,
        "finish": "eos",
        "reward": reward,
        "failure": None,
        **changes,
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run in which two members gave the same answer and earned different rewards."""
    directory = RunDirectory.create(tmp_path / "run", load_config({"generations": 1}), DIGEST, 1)
    directory.write_held_out(score(0), [rollout(0, 7, 0.5)], BATCH)
    directory.write(record(0), BATCH)
    rows = "".join(f"{json.dumps(row(member, member / 4, prompt=''))}\n" for member in (0, 1))
    (directory.path / "rollouts.jsonl").write_text(rows, encoding="utf-8")
    directory.write_held_out(score(1, 0.55), [rollout(0, 7, 0.55)], BATCH)
    return directory


def test_the_same_answer_with_two_rewards_is_named():
    found = random_reward(load_config({}), [row(), row(1, 0.25)])
    assert found.startswith(SAID)
    assert "earned 0 and 0.25" in found


@pytest.mark.parametrize(
    "other",
    [
        row(1),
        row(1, 0.25, generation=3),
        row(1, 0.25, example=8),
        row(1, 0.25, completion="5"),
        row(1, 0.25, tokens=3),
        row(1, 0.25, finish="length"),
        row(1, 0.25, failure="timeout"),
        row(1, 0.25, turns=[]),
    ],
)
def test_a_row_that_may_earn_another_reward_is_not_compared(other):
    assert not random_reward(load_config({}), [row(), other])


@pytest.mark.parametrize(
    "task", [{"kl_coef": 0.1}, {"scorers": {"long": {"kind": "length", "start": 0, "end": 8}}}]
)
def test_rewards_that_depend_on_more_than_the_text_are_not_compared(task):
    config = load_config({"task": {"kind": "conciseness", **task}})
    assert not random_reward(config, [row(), row(1, 0.25)])


def test_summary_report_and_page_say_it(run: RunDirectory):
    out = io.StringIO()
    print_result(Console(file=out, width=300), run, quiet=True)
    assert SAID in out.getvalue()
    next_lines = " ".join(" ".join(printed_lines(run)).split())
    assert "Make the reward deterministic first" in next_lines
    assert "More generations" not in next_lines
    told = CliRunner().invoke(app, ["report", str(run.path), "--json"])
    assert json.loads(told.stdout)["runs"][0]["advice"][0].startswith(SAID)
    assert SAID in write_report(run.path).read_text(encoding="utf-8")
