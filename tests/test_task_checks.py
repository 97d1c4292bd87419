"""`germline check` and `germline new`: what is found, what is shown, what is written."""

import importlib

import pytest

import germline
from germline.run.build_parts import make_graders
from germline.run.preflight import check_custom_reward
from germline.tasks import make_task
from germline.tasks.task_settings import open_thinking
from tests.command_line import command
from tests.slow_cases import mostly_slow
from tests.tiny import save_tiny
from tests.toy_runs import settings

ROWS = "train = [{'prompt': f'Number {n}?', 'answer': str(n)} for n in range(10)]\n"
RIGHT = "    return float(completion.strip() == example['answer'])\n"
HEAD = "import random, time\ndef reward(completion, example):\n"


def file(folder, body, rows=ROWS):
    path = folder / "numbers.py"
    path.write_text(rows + HEAD + body, encoding="utf-8")
    return path


def findings(folder, body, rows=ROWS, **more):
    checkup = germline.check_task(file(folder, body, rows), ["graders.timeout_s=2"], **more)
    return {one.tried: one for one in checkup.findings}


def test_a_good_task_has_no_problems(tmp_path):
    checkup = germline.check_task(file(tmp_path, RIGHT))
    assert checkup.problems == ()
    assert {one.verdict for one in checkup.findings} == {"ok"}
    gold, empty = checkup.findings[1:3]
    assert (set(gold.rewards), set(empty.rewards)) == ({1.0}, {0.0})


def test_a_reward_that_is_the_same_for_every_text_is_warned_of(tmp_path):
    rows = "train = [{'prompt': f'Number {n}?'} for n in range(10)]\n"
    constant, lengths = (
        germline.check_task(file(tmp_path, body, rows)).findings[3]
        for body in ("    return 1.0\n", "    return min(len(completion), 9) / 9\n")
    )
    assert (constant.verdict, lengths.verdict) == ("warning", "ok")
    assert "texts that were tried earn 1, empty ones included" in constant.remark


@pytest.mark.parametrize(
    "name", mostly_slow(["arithmetic", "countdown", "multiplication"], quick={"arithmetic"})
)
def test_the_tasks_that_come_along_have_no_problems(name):
    assert germline.check_task(name, prompts=1).problems == ()


@pytest.mark.parametrize(
    ("body", "tried", "remark"),
    [
        ("    return example['gold']\n", "gold answers", "10 cannot be graded: KeyError: 'gold'"),
        ("    raise ValueError('boom')\n", "gold answers", "boom"),
        ("    return 0.0\n", "gold answers", "earn no more than empty ones"),
        ("    return random.random()\n", "gold answers", "the reward is not deterministic: 0."),
        ("    return 1 / len(completion) - 1\n", "hostile answers", "worse than its floor 0"),
    ],
)
def test_what_is_wrong_is_found(tmp_path, body, tried, remark):
    found = findings(tmp_path, body, prompts=0)[tried]
    assert found.verdict == "wrong"
    assert remark in found.remark


def test_a_reward_that_fails_on_every_answer_of_rows_without_gold_is_wrong(tmp_path):
    rows = ROWS.replace("'answer'", "'gold'")
    found = findings(tmp_path, RIGHT, rows, prompts=0)["hostile answers"]
    assert found.verdict == "wrong"
    assert found.remark.startswith("the reward fails on every answer that was tried: KeyError")
    some_pass = "    return float('(' in completion or int(completion))\n"
    found = findings(tmp_path, some_pass, rows, prompts=0)["hostile answers"]
    assert found.verdict == "warning"


def test_a_reward_that_refuses_texts_by_raising_is_no_problem(tmp_path):
    body = "    return float(int(completion) == int(example['answer']))\n"
    found = findings(tmp_path, body)
    assert "wrong" not in {one.verdict for one in found.values()}
    assert "10 fail, which earns the floor: ValueError" in found["empty answers"].remark


def test_what_is_suspicious_is_a_warning(tmp_path):
    found = findings(tmp_path, "    return float(example['answer'] in completion)\n")
    assert found["hostile answers"].verdict == "warning"
    assert "1 of 19 earn 1, as much as a gold answer" in found["hostile answers"].remark
    rows = "train = test = [{'prompt': 'Why?'}]\n"
    found = findings(tmp_path, "    return len(completion)\n", rows)
    assert [found[one].verdict for one in ("examples", "gold answers")] == ["warning", "warning"]
    assert "prompts in both: 1, such as 'Why?'" in found["examples"].remark
    assert "no example has an `answer`" in found["gold answers"].remark


def test_prompts_longer_than_the_model_takes_are_found(tmp_path):
    rows = ROWS.replace("Number", "Number " + "1 " * 400)
    found = findings(tmp_path, RIGHT, rows)["prompts"]
    assert found.verdict == "wrong"
    assert "but the model's context has 512: lower task.max_new_tokens" in found.remark


def test_a_model_without_a_chat_template_is_found(tmp_path):
    model = save_tiny(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    found = findings(tmp_path, RIGHT, model=str(model))["prompts"]
    assert found.verdict == "wrong"
    assert "task.chat=false" in found.remark


def test_what_a_reward_prints_goes_to_a_file(tmp_path, capfd):
    report = germline.check_task(file(tmp_path, "    print('seen', completion)\n" + RIGHT))
    assert report.problems == ()
    assert report.printed is not None
    assert "seen 5\n" in report.printed.read_text(encoding="utf-8")
    report.printed.unlink()
    assert "seen" not in "".join(capfd.readouterr())
    assert germline.check_task(file(tmp_path, RIGHT), prompts=0).printed is None


# --- on the command line


SHELF = """
class Environment:
    def reset(self, **row):
        self.answer, self.taken = row["answer"], ""

    def take(self, book: str) -> str:
        \"\"\"Take a book.

        Args:
            book: its title.
        \"\"\"
        self.taken = book
        return "taken"

    def get_reward(self):
        return float(self.taken == self.answer)


"""


def test_gold_answers_need_not_earn_where_a_tool_must_be_called(tmp_path):
    path = tmp_path / "shelf.py"
    path.write_text(SHELF + ROWS)
    shown = command("check", path)
    assert "only reply, without a tool call" in shown.stdout
    assert "as much as a gold answer" not in shown.stdout
    assert shown.exit_code == 0, shown.output


def test_the_command_takes_rows_and_settings_and_refuses_those_without_effect(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": "1?", "a": 1}\n{"q": "2?", "a": 2}\n')
    words = ("check", path, "task.template={q}", "task.answer=a", "task.reward=numeric")
    assert command(*words).exit_code == 0
    refused = command(*words, "batch_size=3")
    assert refused.exit_code == 2
    assert "batch_size=3 has no effect here" in refused.stderr


def test_a_new_task_and_its_tests_work_as_written(tmp_path, monkeypatch):
    shown = command("new", tmp_path / "riddles")
    assert f"pytest {tmp_path / 'test_riddles.py'}\n" in shown.output
    names = ("riddles.py", "riddles.yaml", "test_riddles.py")
    assert tuple(sorted(path.name for path in tmp_path.iterdir())) == names
    assert all("NAME" not in path.read_text() for path in tmp_path.iterdir())
    monkeypatch.syspath_prepend(tmp_path)
    tests = vars(importlib.import_module("test_riddles"))
    for name in [name for name in tests if name.startswith("test_")]:
        tests.pop(name)()


def test_a_new_task_trains_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("new", "riddles").exit_code == 0
    few = ("generations=2", "batch_size=4", "strategy.population=4", "held_out.examples=4")
    shown = command("train", "riddles.yaml", *few, "--out", "run")
    assert shown.exit_code == 0, shown.output
    assert "held-out reward" in shown.stdout


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "test_riddles.py").write_text("mine")
    shown = command("new", tmp_path / "riddles")
    assert shown.exit_code == 2
    assert "test_riddles.py already exists" in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_riddles.py"]


FROM_1 = ROWS.replace("range(10)", "range(1, 11)")


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
        ("'many words ' * 9 + str(n)", "task.max_new_tokens=4", "warning"),
        ("str(n)", 'task.stop=["\\n"]', "ok"),
    ],
)
def test_gold_answers_that_no_model_can_write_are_found(answer, setting, verdict, tmp_path):
    path = tmp_path / "numbers.py"
    reward = "def reward(completion, example):\n    return completion == example['answer']\n"
    path.write_text(FROM_1.replace("str(n)", answer) + reward)
    report = germline.check_task(path, [setting], prompts=0)
    assert {one.tried: one.verdict for one in report.findings}["gold answers"] == verdict


# --- what the start of a run finds wrong with a custom reward, and what it recommends


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_answers_are_tried_where_the_template_of_the_model_opens_thinking(tmp_path):
    rows = "train = [{'prompt': f'{n}?', 'answer': str(n)} for n in range(9)]\n"
    reward = "def reward(completion, example):\n    return float(completion.split()[0] == '3')\n"
    path = written(tmp_path, "digits.py", rows + reward)
    config = settings(f"task={{kind: {path}, strip_thinking: true}}")
    task = make_task(config.task)
    task = open_thinking(task)
    with make_graders(config, task) as graders:
        check_custom_reward(config, task, graders)  # an empty text would fail
