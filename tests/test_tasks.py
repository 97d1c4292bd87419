"""The tasks' data: where examples come from, how they are split, what a bad file is told."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from germline.config import Arithmetic, Conciseness, Countdown, Multiplication, load_config
from germline.run.task_check import check_task
from germline.tasks import make_task
from germline.tasks.arithmetic import ArithmeticTask, MultiplicationTask
from germline.tasks.conciseness import FACTS, ConcisenessTask
from germline.tasks.countdown import (
    CountdownTask,
    countdown_prompt,
    field_rows,
    gold_completion,
    small_rows,
)
from germline.tasks.splits import seeded_split
from germline.types import GermlineError

FIELD_FILE = Path(__file__).parents[2] / "shared" / "data" / "countdown.json"
ROW = {
    "context": "Using the numbers [3 5 2], ...\n<think>",
    "numbers": [3, 5, 2],
    "target": "13",
    "solution": "((3 * 5) - 2)",
}


def json_file(folder, content):
    path = folder / "rows.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def everything(task):
    return [*task.examples("train"), *task.examples("test")]


def puzzle(example):
    return tuple(sorted(example.facts["numbers"])), example.facts["target"]


def test_a_split_keeps_equal_keys_together_and_loses_nothing():
    items = list(range(1000))
    train, test = seeded_split(items, [item // 4 for item in items], 0, "items")
    assert sorted(train + test) == items
    assert not {item // 4 for item in train} & {item // 4 for item in test}
    assert len(test) == 200


def test_one_example_cannot_be_split():
    with pytest.raises(GermlineError, match=r"rows\.json: .*at least 2 .*found 1"):
        seeded_split(["a", "a"], ["a", "a"], 0, "rows.json")


def test_arithmetic_asks_in_the_users_words():
    task = ArithmeticTask(Arithmetic())
    for example in everything(task):
        a, sign, b = (example.facts[name] for name in ("a", "sign", "b"))
        assert example.prompt == f"What is {a} {sign} {b}?"
        assert int(example.answer) == eval(f"{a} {sign} {b}")


def factors_of(task, split):
    return [(one.facts["a"], one.facts["b"]) for one in task.examples(split)]


def test_the_prompt_asks_for_the_product_that_is_the_answer():
    for example in MultiplicationTask(Multiplication()).examples("test"):
        asked = re.fullmatch(r"What is (\d+) \* (\d+)\? .+", example.prompt)
        assert asked is not None
        assert int(example.answer) == int(asked[1]) * int(asked[2])


@pytest.mark.parametrize(
    "task",
    [ArithmeticTask(Arithmetic())]
    + [MultiplicationTask(Multiplication(digits=digits)) for digits in (1, 2, 3)],
)
def test_no_pair_is_trained_on_and_tested_in_any_order(task):
    train, test = (
        {frozenset(pair) for pair in factors_of(task, split)} for split in ("train", "test")
    )
    assert not train & test
    assert 0.15 < len(test) / (len(train) + len(test)) < 0.25


def test_conciseness_splits_the_facts_four_to_one():
    task = ConcisenessTask(Conciseness())
    assert {(example.prompt, example.answer) for example in everything(task)} == {
        (fact.question, fact.answer) for fact in FACTS
    }
    assert abs(len(task.examples("test")) - len(FACTS) / 5) <= 1


def test_the_papers_pairs_are_two_to_train_and_eight_to_test():
    task = ConcisenessTask(Conciseness(data="paper"))
    assert [example.answer for example in task.examples("train")] == ["8", "No"]
    answers = ["Paris", "84", "True", "10", "Hola", "30", "Red", "7"]
    assert [example.answer for example in task.examples("test")] == answers


def test_generated_rows_are_small_solvable_and_different():
    rows = small_rows(1, 3000)
    assert len({row["context"] for row in rows}) == 3000
    for row in rows:
        solution = str(row["solution"])
        assert sorted(int(c) for c in solution if c.isdigit()) == sorted(row["numbers"])
        assert len(row["numbers"]) == 3
        assert eval(solution) == int(row["target"])
        assert 1 <= int(row["target"]) <= 50


def test_rows_of_the_fields_size_are_solvable_different_and_like_the_fields():
    rows = field_rows(0, 2200)
    assert len({(tuple(sorted(row["numbers"])), row["target"]) for row in rows}) == 2200
    assert {len(row["numbers"]) for row in rows} == {3, 4}
    for row in rows:
        solution = str(row["solution"])
        assert sorted(map(int, re.findall(r"[0-9]+", solution))) == sorted(row["numbers"])
        assert eval(solution) == int(row["target"])
        assert all(1 <= number <= 99 for number in row["numbers"])
        assert 10 <= int(row["target"]) <= 99
    assert rows[0]["context"] == countdown_prompt(rows[0]["numbers"], rows[0]["target"])
    task = CountdownTask(Countdown(puzzles="field"))
    assert task.examples("train")[0].prompt == rows[0]["context"]
    assert len(task.examples("test")) == 2000


@pytest.mark.parametrize("split", ["field", "seeded"])
def test_no_puzzle_is_both_trained_on_and_tested(split):
    task = CountdownTask(Countdown(split=split))
    train, test = task.examples("train"), task.examples("test")
    assert not {puzzle(example) for example in train} & {puzzle(example) for example in test}
    assert len(train) + len(test) == 2200
    assert len(test) == 2000 if split == "field" else 400 < len(test) < 480


def test_the_fields_split_takes_the_first_200_and_the_last_2000_rows_of_a_file(tmp_path):
    rows = [{**ROW, "context": f"row {n}"} for n in range(2300)]
    task = CountdownTask(Countdown(path=json_file(tmp_path, rows)))
    assert [e.prompt for e in task.examples("train")] == [f"row {n}" for n in range(200)]
    assert [e.prompt for e in task.examples("test")] == [f"row {n}" for n in range(300, 2300)]


@pytest.mark.skipif(not FIELD_FILE.exists(), reason=f"the field's rows are not at {FIELD_FILE}")
def test_the_fields_own_file_is_read_and_asks_as_the_generated_rows_do():
    task = CountdownTask(Countdown(path=FIELD_FILE))
    assert [len(task.examples("train")), len(task.examples("test"))] == [200, 2000]
    for example in everything(task):
        numbers, target = example.facts["numbers"], example.facts["target"]
        assert isinstance(numbers, tuple)
        assert isinstance(target, str)
        # The field's numbers are aligned in columns: [ 2 54 17].
        assert re.sub(r"(?<=\[) +|(?<= ) +", "", example.prompt) == countdown_prompt(
            numbers, target
        )
    gold = [task.grader(example.answer, example)["answer"] for example in everything(task)]
    assert sum(gold) == 2200 - 19 - 15  # 19 rows have no solution, 15 one that breaks the rules


def test_the_context_of_a_row_is_the_prompt_as_it_stands(tmp_path):
    path = json_file(tmp_path, [ROW, {**ROW, "target": "-11", "solution": None}])
    task = CountdownTask(Countdown(path=path, split="seeded"))
    by_target = {example.facts["target"]: example for example in everything(task)}
    assert by_target["13"].prompt == ROW["context"]
    assert by_target["13"].answer == gold_completion("((3 * 5) - 2)")
    assert by_target["-11"].answer == ""
    assert not by_target["13"].chat


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("[{", r"rows\.json, line 1, column 3: not valid JSON: "),
        ([{**ROW, "numbers": [3, -5]}], "row 0: the field `numbers`: .* equal to 0, found -5"),
        ([{**ROW, "numbers": [True, 2]}], "row 0: the field `numbers`: .*, found True"),
        *(
            ([{**ROW, "target": target}], "row 0: the field `target`: .* match pattern")
            for target in ("", "x", "1e9", "1/3", "nan", "5 ", "5\n", "\u0663", "9" * 99)
        ),
        ([{**ROW, "solution": 13}], "row 0: the field `solution`: .* valid string, found 13"),
        ([ROW, {"numbers": [3], "target": "3"}], "row 1: the field `context`: Field required"),
        ([ROW] * 300, r"task\.split=field takes .* only 300 rows: use task\.split=seeded"),
    ],
)
def test_bad_rows_are_refused_with_their_place(tmp_path, rows, complaint):
    with pytest.raises(GermlineError, match=complaint):
        CountdownTask(Countdown(path=json_file(tmp_path, rows)))


def test_chat_follows_the_task_unless_the_config_says_otherwise():
    def chat(task):
        return task.examples("train")[0].chat

    assert chat(ConcisenessTask(Conciseness()))
    assert chat(ArithmeticTask(Arithmetic()))
    assert not chat(CountdownTask(Countdown()))
    assert not chat(ConcisenessTask(Conciseness(chat=False)))
    assert not chat(ArithmeticTask(Arithmetic(chat=False)))
    assert chat(CountdownTask(Countdown(chat=True)))


def test_the_config_overrides_the_length_limit_and_the_stop_strings():
    task = CountdownTask(Countdown(max_new_tokens=7, stop=("\n",)))
    assert (task.max_new_tokens, task.stop) == (7, ("\n",))
    assert CountdownTask(Countdown()).stop == ()


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
