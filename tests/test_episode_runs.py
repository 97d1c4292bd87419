"""Runs of tasks with episodes: one engine or two, stopped or not, replayed, shown and scored."""

import json

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.html_page import write_report
from germline.run import evaluate, replay, resume, train
from tests.toy_runs import finish, journal

pytestmark = pytest.mark.usefixtures("graded_in_process")

SETTINGS = {
    "task": {"kind": "wordle", "max_new_tokens": 6, "max_turns": 3, "temperature": 1.0},
    "strategy": {"population": 4, "sigma": 0.3, "learning_rate": 0.1},
    "batch_size": 4,
    "generations": 3,
    "microbatch": {"rows": 4},
    "held_out": {"every": 2, "examples": 4},
    "engine": "toy",
}


def run(path, *overrides):
    return RunDirectory.open(finish(train(load_config(SETTINGS, overrides), path)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("episodes") / "whole")


def test_two_engines_write_the_journal_of_one(whole, tmp_path):
    two = run(tmp_path / "two", "fleet.engines=2")
    assert journal(two.path) == journal(whole.path)
    shown = [(row["turns"], row["ended"], row["reward"]) for row in two.rollouts()]
    assert shown == [(row["turns"], row["ended"], row["reward"]) for row in whole.rollouts()]


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(whole, tmp_path):
    stopped = run(tmp_path / "stopped", "generations=2")
    finish(resume(stopped.path, ["generations=3"]))
    assert journal(stopped.path) == journal(whole.path)
    assert replay(whole.path, generation=2) == whole.journal.read()[-1].digest


def test_rollouts_record_turns_and_why_they_ended(whole):
    rows = whole.rollouts()
    assert {row["ended"] for row in rows} <= {"done", "max_turns"}
    for row in rows:
        roles = [turn["role"] for turn in row["turns"]]
        assert roles.count("assistant") <= 3
        assert row["tokens"] == sum(turn["tokens"] for turn in row["turns"])


def test_a_run_of_episodes_is_scored_again_to_the_same_value(whole):
    last = whole.held_out()[-1]
    score, _ = evaluate(str(whole.path), limit=4)
    assert (score.mean, score.values) == (last.score.mean, last.score.values)


def test_the_report_and_eval_show_who_wrote_what(whole, tmp_path):
    page = write_report(whole.path).read_text()
    assert "environment: " in page
    assert "(ended: " in page
    _, completions = evaluate(str(whole.path), limit=2, out=tmp_path / "eval.jsonl")
    rows = [json.loads(line) for line in completions.read_text().splitlines()]
    assert all(row["turns"][0]["role"] == "assistant" for row in rows)
    assert {"reward", "parts", "failure", "ended"} <= set(rows[0])
    assert "observation" not in rows[0]
