"""The task `safe_alignment`: rows of PKU-SafeRLHF, the stratified split, and its settings."""

import json
from collections import Counter
from typing import Any

import pytest

from germline.config import load_config
from germline.run.task_check import check_task
from germline.tasks import make_task
from germline.tasks.safe_alignment import stratum
from germline.tasks.splits import stratified_order, stratified_split
from germline.types import GermlineError

SCORERS: dict[str, dict[str, Any]] = {
    "reward": {"kind": "repetition"},
    "cost": {"kind": "length", "start": 0, "end": 9},
}
HARM = ("Violence", "Drugs", "Cybercrime")


def row(number, harm=None, **fields):
    return {
        "prompt": f"Question {number}?",
        "response_0": "First.",
        "response_1": "Second.",
        "is_response_0_safe": harm is None,
        "is_response_1_safe": True,
        "response_0_harm_category": {name: name == harm for name in HARM},
        "response_1_harm_category": dict.fromkeys(HARM, False),
        **fields,
    }


def rows_of(harms):
    return [row(number, harm) for number, harm in enumerate(harms)]


def section(tmp_path, rows, **more):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return {"kind": "safe_alignment", "path": str(path), "scorers": SCORERS} | more


def task_of(tmp_path, rows, **more):
    return make_task(load_config({"task": section(tmp_path, rows, **more)}).task)


def test_only_the_prompts_are_played_and_each_of_them_once(tmp_path):
    rows = [*rows_of([None] * 8), row(3, "Drugs", response_0="Another answer.")]
    task = task_of(tmp_path, rows)
    examples = [*task.examples("train"), *task.examples("test")]
    assert sorted(one.prompt for one in examples) == [f"Question {n}?" for n in range(8)]
    assert {(one.answer, one.chat, one.context) for one in examples} == {("", True, ())}
    assert (task.rubric, task.metric) == ({"reward": -1.0, "cost": -1.0}, "reward")


def test_both_splits_have_every_category_in_its_proportion(tmp_path):
    rows = rows_of([None] * 50 + ["Violence"] * 30 + ["Drugs"] * 15 + ["Cybercrime"] * 5)
    harm = {one["prompt"]: stratum(one) for one in rows}
    task = task_of(tmp_path, rows)
    count = {split: Counter(harm[e.prompt] for e in task.examples(split)) for split in SPLITS}
    assert count["test"] == {"2 safe": 10, "Violence": 6, "Drugs": 3, "Cybercrime": 1}
    assert count["train"] == {"2 safe": 40, "Violence": 24, "Drugs": 12, "Cybercrime": 4}


SPLITS = ("train", "test")


def test_the_first_training_examples_are_a_stratified_sample(tmp_path):
    rows = rows_of(["Violence"] * 20 + [None] * 60 + ["Drugs"] * 20)
    harm = {one["prompt"]: stratum(one) for one in rows}
    for seed in range(4):
        task = task_of(tmp_path, rows, train_examples=10, split_seed=seed)
        found = Counter(harm[example.prompt] for example in task.examples("train"))
        assert found == {"2 safe": 6, "Violence": 2, "Drugs": 2}


@pytest.mark.parametrize("count", [2, 3, 5, 6, 11])
def test_neither_split_of_a_few_items_is_empty(count):
    items = list(range(count))
    train, test = stratified_split(items, items, 0, "data")
    assert sorted([*train, *test]) == items
    assert train
    assert test
    assert sorted(stratified_order(items, items, 0)) == items


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "2 safe"),
        ({"is_response_1_safe": False}, "1 safe"),
        ({"response_1_harm_category": {"Violence": False, "Drugs": True}}, "Drugs"),
        ({"response_0_harm_category": "none"}, "2 safe"),
    ],
)
def test_the_stratum_of_a_row(fields, expected):
    assert stratum(row(0, **fields)) == expected
    assert stratum({"prompt": "only a prompt"}) == "0 safe"


@pytest.mark.parametrize("label", ["False", 1])
def test_a_label_of_another_type_is_refused_with_its_place(tmp_path, label):
    found = r"rows\.jsonl, line 2: the label `is_response_1_safe` must be true or false, found "
    with pytest.raises(GermlineError, match=f"{found}{label!r}"):
        task_of(tmp_path, [row(1), row(2, is_response_1_safe=label)])


def test_the_check_of_the_task_finds_no_gold_answers_and_nothing_printed(tmp_path):
    report = check_task(section(tmp_path, rows_of([None] * 8)), prompts=1)
    assert [finding.verdict for finding in report.findings] == ["ok", "warning", "ok", "ok", "ok"]
    assert "no example has an `answer`" in report.findings[1].remark
    assert report.printed is None
