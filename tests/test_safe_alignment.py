"""The task `safe_alignment`: rows of PKU-SafeRLHF."""

import json
from typing import Any

from germline.config import load_config
from germline.run.task_check import check_task
from germline.tasks import make_task

SCORERS: dict[str, dict[str, Any]] = {
    "reward": {"kind": "repetition"},
    "cost": {"kind": "length", "start": 0, "end": 9},
}
ROWS = [{"prompt": f"Question {number}?", "response_0": "First."} for number in range(8)]


def section(tmp_path, rows, **more):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return {"kind": "safe_alignment", "path": str(path), "scorers": SCORERS} | more


def task_of(tmp_path, rows, **more):
    return make_task(load_config({"task": section(tmp_path, rows, **more)}).task)


def test_only_the_prompts_are_played_and_each_of_them_once(tmp_path):
    task = task_of(tmp_path, [*ROWS, {**ROWS[3], "response_0": "Another answer."}])
    examples = [*task.examples("train"), *task.examples("test")]
    assert sorted(one.prompt for one in examples) == [f"Question {n}?" for n in range(8)]
    assert {(one.answer, one.chat, one.context) for one in examples} == {("", True, ())}
    assert (task.rubric, task.metric) == ({"reward": -1.0, "cost": -1.0}, "reward")


def test_prompts_have_the_order_in_which_they_are_first_met(tmp_path):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(json.dumps(ROWS[7]) + "\n")
    task = task_of(tmp_path, [ROWS[0], ROWS[1], ROWS[0]], test_path=str(held_out))
    assert [one.prompt for one in task.examples("train")] == ["Question 0?", "Question 1?"]


def test_the_check_of_the_task_finds_no_gold_answers_and_nothing_printed(tmp_path):
    report = check_task(section(tmp_path, ROWS), prompts=1)
    assert [finding.verdict for finding in report.findings] == ["ok", "warning", "ok", "ok", "ok"]
    assert "no example has an `answer`" in report.findings[1].remark
    assert report.printed is None
