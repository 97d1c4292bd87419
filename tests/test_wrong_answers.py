"""`germline check` tries plain wrong answers of the right kind."""

import pytest

import germline
from germline.run.reward_check import wrong_answers

ROWS = "train = [{'prompt': f'Number {n}?', 'answer': str(n)} for n in range(1, 11)]\n"
HEAD = "def reward(completion, example):\n    n, gold = int(completion), int(example['answer'])\n"


def findings(folder, body, rows=ROWS):
    path = folder / "numbers.py"
    path.write_text(f"{rows}{HEAD}    return {body}\n", encoding="utf-8")
    return {row.tried: row for row in germline.check_task(path, prompts=0).findings}


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        (["a", "b", "a"], [("b", 0), ("a", 1), ("b", 2)]),
        (["7", "7"], [("0", 0), ("0", 1)]),
        (["0", "1,000"], [("1,000", 0), ("0", 1), ("0", 1)]),
        (["a"], []),
        ([], []),
    ],
)
def test_a_wrong_answer_is_that_of_another_example_and_0_for_a_number(gold, wrong):
    assert wrong_answers(gold) == wrong


def test_a_negative_reward_of_a_wrong_number_is_found_where_hostile_texts_are_no_numbers(tmp_path):
    rows = findings(tmp_path, "1 - abs(n - gold)")
    assert [rows[name].verdict for name in ("gold answers", "hostile answers")] == ["ok", "warning"]
    assert rows["wrong answers"].verdict == "wrong"
    assert "from reward(), worse than its floor 0" in rows["wrong answers"].remark


def test_a_wrong_answer_that_earns_more_than_the_gold_one_is_a_warning(tmp_path):
    row = findings(tmp_path, "1 + min(n, 10)")["wrong answers"]
    assert (row.verdict, row.count) == ("warning", 20)
    assert "more than the gold answer of their example, such as '" in row.remark
    row = findings(tmp_path, "1 + 0 * n")["wrong answers"]  # as much is no finding
    assert (row.verdict, row.remark, set(row.rewards)) == ("ok", "", {1.0})


def test_rows_without_another_answer_have_no_row_of_wrong_answers(tmp_path):
    rows = "train = [{'prompt': f'Number {n}?', 'answer': '0'} for n in range(10)]\n"
    assert "wrong answers" not in findings(tmp_path, "1 + (n == gold)", rows)


def test_a_hostile_text_that_is_right_by_chance_tempts_nobody(tmp_path):
    rows = "train = [{'prompt': 'One?', 'answer': '1'}, {'prompt': 'Two?', 'answer': '2'}] * 5\n"
    last = (
        "import re\ndef reward(completion, example):\n    found = re.findall(r'\\d+', completion)\n"
    )
    path = tmp_path / "numbers.py"
    path.write_text(f"{rows}{last}    return float(found[-1:] == [example['answer']])\n")
    found = {row.tried: row for row in germline.check_task(path, prompts=0).findings}
    assert (found["hostile answers"].verdict, max(found["hostile answers"].rewards)) == ("ok", 1)


@pytest.mark.parametrize(
    ("answer", "setting", "verdict"),
    [
        ("'one\\n' + str(n)", 'task.stop=["\\n"]', "wrong"),
        ("f'<|im_end|>{n}'", "task.temperature=0", "wrong"),
        ("'one\\n' * (n % 2) + str(n)", 'task.stop=["\\n"]', "warning"),
        ("'many words ' * 9 + str(n)", "task.max_new_tokens=4", "warning"),
        ("str(n)", 'task.stop=["\\n"]', "ok"),
    ],
)
def test_gold_answers_that_no_model_can_write_are_found(answer, setting, verdict, tmp_path):
    path = tmp_path / "numbers.py"
    reward = "def reward(completion, example):\n    return completion == example['answer']\n"
    path.write_text(ROWS.replace("str(n)", answer) + reward)
    report = germline.check_task(path, [setting], prompts=0)
    assert {one.tried: one.verdict for one in report.findings}["gold answers"] == verdict
