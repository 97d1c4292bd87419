"""`germline check` and `germline new`: what is found, what is shown, what is written."""

import importlib
import io
import re
import shlex

import pytest
from rich.console import Console
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.cli.output import print_table
from germline.config import load_config
from germline.run.preflight import check_run
from germline.tasks import make_task
from germline.types import GermlineError
from tests.tiny import save_tiny

ROWS = "train = [{'prompt': f'Number {n}?', 'answer': str(n)} for n in range(10)]\n"
RIGHT = "    return float(completion.strip() == example['answer'])\n"
HEAD = "import random, time\ndef reward(completion, example):\n"


def called(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


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


@pytest.mark.parametrize("name", ["arithmetic", "countdown", "multiplication"])
def test_the_tasks_that_come_along_have_no_problems(name):
    assert germline.check_task(name, prompts=1).problems == ()


def test_prompts_are_shown_as_the_model_sees_them(tmp_path):
    rows = ROWS + "test = [{'prompt': 'Number 10?', 'answer': '10'}]\n"
    shown, other = germline.check_task(file(tmp_path, RIGHT, rows), prompts=2).prompts
    assert shown.text == "<|im_start|>user\nNumber 0?<|im_end|>\n<|im_start|>assistant\n"
    assert (shown.tokens, shown.answer, other.answer) == (11, "0", "5")


@pytest.mark.parametrize(
    ("body", "tried", "remark"),
    [
        ("    return example['gold']\n", "gold answers", "10 cannot be graded: KeyError: 'gold'"),
        ("    return 0.0\n", "gold answers", "earn no more than empty ones"),
        ("    return random.random()\n", "gold answers", "the reward is not deterministic: 0."),
        ("    return 1 / len(completion) - 1\n", "hostile answers", "worse than its floor 0"),
        ("    return -len(completion)\n", "gold answers", "returns to one, such as max(-"),
    ],
)
def test_what_is_wrong_is_found(tmp_path, body, tried, remark):
    found = findings(tmp_path, body, prompts=0)[tried]
    assert found.verdict == "wrong"
    assert remark in found.remark


def test_a_text_that_takes_too_long_is_a_warning(tmp_path):
    body = "    if completion == '9**9**9': time.sleep(60)\n" + RIGHT
    found = findings(tmp_path, body, prompts=0)["hostile answers"]
    assert found.verdict == "warning"
    assert "1 fail, which earns the floor: timeout after 2.0 s on '9**9**9'" in found.remark


def test_equal_prompts_are_counted_once(tmp_path):
    found = findings(tmp_path, RIGHT, ROWS.replace("{n}?", "{n // 2}?"), prompts=0)
    assert "8 to train (different prompts: 4), 2 held out (diff" in found["examples"].remark
    assert re.match(r"\d+ tokens, and up to 128 new ones", found["prompts"].remark)


def test_an_exception_on_every_answer_is_wrong(tmp_path):
    found = findings(tmp_path, "    raise ValueError('boom')\n", prompts=0)
    assert found["gold answers"].verdict == "wrong"
    assert "boom" in found["gold answers"].remark
    # The gold answers earn no more, but none was graded.
    assert found["hostile answers"].verdict == "warning"


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
    assert found["empty answers"].remark == (
        "10 fail, which earns the floor: ValueError: invalid literal for int() with base 10: '' "
        "(numbers.py, line 4) on ''"
    )


def test_a_long_hostile_text_that_wins_is_in_the_report(tmp_path):
    right = "completion.strip() == example['answer']"
    found = findings(tmp_path, f"    return float({right} or len(completion) > 5_000)\n")
    row = found["hostile answers"]
    assert "more characters: members may learn" in row.remark
    assert len(row.text) > 5_000


def test_what_is_suspicious_is_a_warning(tmp_path):
    found = findings(tmp_path, "    return float(example['answer'] in completion)\n")
    assert found["hostile answers"].verdict == "warning"
    assert found["hostile answers"].remark.startswith("5 of 49 earn 1, as much as a gold answer")
    assert ", such as '\\x1b[31m" in found["hostile answers"].remark
    rows = "train = test = [{'prompt': 'Why?'}]\n"
    found = findings(tmp_path, "    return len(completion)\n", rows)
    assert [found[one].verdict for one in ("examples", "gold answers")] == ["warning", "warning"]
    assert "1 prompts are in both, such as 'Why?'" in found["examples"].remark
    assert "no example has an `answer`" in found["gold answers"].remark


def test_prompts_longer_than_the_model_takes_are_found(tmp_path):
    rows = ROWS.replace("Number", "Number " + "1 " * 400)
    found = findings(tmp_path, RIGHT, rows)["prompts"]
    assert found.verdict == "wrong"
    assert "but the model's context has 512: shorten the prompts" in found.remark
    assert "max_new_tokens=" not in found.remark, "no completion fits, however short"


def test_a_shorter_completion_is_recommended_where_it_leaves_room_for_an_answer(tmp_path):
    path = file(tmp_path, RIGHT)
    report = germline.check_task(path, ["task.max_new_tokens=505"], prompts=0)
    found = next(one for one in report.findings if one.tried == "prompts")
    assert re.search(r"has 512: set task\.max_new_tokens=501 or less, or shorten", found.remark)


def test_a_model_without_a_chat_template_is_found(tmp_path):
    model = save_tiny(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    found = findings(tmp_path, RIGHT, model=str(model))["prompts"]
    assert found.verdict == "wrong"
    assert "task.chat=false" in found.remark


def test_a_reward_of_trl_may_stand_in_a_file(tmp_path):
    path = tmp_path / "numbers.py"
    reward = "def reward(completions, answer, **_):\n    return [float(completions == answer)]\n"
    path.write_text(ROWS + reward)
    found = {one.tried: one for one in germline.check_task(path, prompts=0).findings}
    assert set(found["gold answers"].rewards) == {1.0}
    assert set(found["empty answers"].rewards) == {0.0}


def test_what_a_reward_prints_goes_to_a_file(tmp_path, capfd):
    report = germline.check_task(file(tmp_path, "    print('seen', completion)\n" + RIGHT))
    assert report.problems == ()
    assert report.printed is not None
    assert "seen 5\n" in report.printed.read_text(encoding="utf-8")
    report.printed.unlink()
    assert "seen" not in "".join(capfd.readouterr())
    assert germline.check_task(file(tmp_path, RIGHT), prompts=0).printed is None


# --- on the command line


@pytest.mark.parametrize("width", [80, 100, 140])
def test_every_column_is_shown_in_a_terminal_of_this_width(width):
    columns = ("tried", "number", "reward", "verdict", "remark")
    rows = [("hostile answers", "49", "0.0464 to 0.968", "warning", "one earns as much " * 20)]
    written = io.StringIO()
    console = Console(width=width, file=written, force_terminal=True, color_system=None)
    print_table(columns, rows, console)
    lines = written.getvalue().splitlines()
    assert lines[0].split() == list(columns)
    assert lines[1].split()[:7] == ["hostile", "answers", "49", "0.0464", "to", "0.968", "warning"]
    assert max(map(len, lines)) <= width


def test_the_command_shows_prompts_and_findings_and_ends_well(tmp_path):
    shown = called("check", file(tmp_path, RIGHT), "--prompts", 2)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("<|im_start|>user\nNumber ") == 2
    assert shown.stdout.count("gold answer: ") == 2
    assert "\ngold answers\t10\t1\tok\t" in shown.stdout


def test_a_task_without_problems_is_evaluated_next(tmp_path):
    (tmp_path / "right.yaml").write_text(f"task: {{path: {file(tmp_path, RIGHT)}}}\n")
    shown = called("check", tmp_path / "right.yaml", "task.max_new_tokens=4")
    *_, head, line = shown.stdout.splitlines()
    assert head == "next:"
    command = shlex.split(line, comments=True)
    assert command[:3] == ["germline", "eval", "nano"]
    assert "task.max_new_tokens=4" in command
    scored = called(*command[1:], "--limit", 2, "--out", tmp_path / "completions.jsonl")
    assert scored.exit_code == 0, scored.output
    assert "n 2" in scored.stdout


def test_the_command_ends_with_1_when_something_is_wrong(tmp_path):
    shown = called("check", file(tmp_path, "    return 1\n"), "--prompts", 0)
    assert shown.exit_code == 1
    assert "gold answers\t10\t1\twrong\tearn no more than empty ones" in shown.stdout


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
    shown = called("check", path, "--prompts", 0)
    assert "only reply, without a tool call" in shown.stdout
    assert "as much as a gold answer" not in shown.stdout
    assert shown.exit_code == 0, shown.output


def test_a_config_stands_for_its_task(tmp_path):
    (tmp_path / "shelf.py").write_text(SHELF + ROWS)
    config = tmp_path / "shelf.yaml"
    config.write_text(f"task: {{path: {tmp_path / 'shelf.py'}, max_new_tokens: 7}}\nseed: 3\n")
    shown = called("check", config, "--prompts", 0)
    assert shown.exit_code == 0, shown.output
    assert "up to 7 new ones" in shown.stdout


def tools_row(tmp_path, body):
    path = tmp_path / "shelf.py"
    path.write_text(
        SHELF.replace('        return "taken"\n', body) + ROWS.replace("str(n)", "'blue'")
    )
    limits = ["graders.timeout_s=2", "task.max_new_tokens=8"]
    report = germline.check_task(path, limits, prompts=0)
    assert not report.problems
    return next(row for row in report.findings if row.tried == "tools")


def test_every_tool_is_called_once_with_arguments_from_its_signature(tmp_path):
    more = """        return f"taken {book}"

    def count(self, books: list, most: int = 5) -> int:
        return most
"""
    row = tools_row(tmp_path, more)
    assert (row.verdict, row.count, row.rewards) == ("ok", 2, ())
    assert row.remark == "take(book='blue') returned 'taken blue'; count(books=[]) returned 5"


def test_a_tool_that_raises_is_a_warning_with_its_line(tmp_path):
    row = tools_row(tmp_path, "        raise KeyError(book)\n")
    assert row.verdict == "warning"
    assert "take(book='blue') raised KeyError: 'blue'" in row.remark
    assert "shelf.py" in row.remark
    line = SHELF.split('        return "taken"')[0].count("\n") + 1
    assert f"line {line}" in row.remark
    assert "the model may call a tool with such arguments" in row.remark


def test_a_tool_that_hangs_is_a_warning_after_the_time_limit(tmp_path):
    row = tools_row(tmp_path, "        while True: pass\n")
    assert row.verdict == "warning"
    assert "take(book='blue') failed: timeout after 2" in row.remark


def test_the_command_takes_rows_and_settings_and_refuses_those_without_effect(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": "1?", "a": 1}\n{"q": "2?", "a": 2}\n')
    words = ("check", path, "task.template={q}", "task.answer=a", "task.reward=numeric")
    assert called(*words).exit_code == 0
    refused = called(*words, "batch_size=3")
    assert refused.exit_code == 2
    assert "batch_size=3 has no effect here" in refused.stderr


def test_a_file_that_cannot_be_loaded_is_told_in_one_paragraph(tmp_path):
    shown = called("check", tmp_path / "nowhere.py")
    assert shown.exit_code == 2
    assert "nowhere.py' cannot be read" in shown.stderr
    assert shown.stdout == ""


def test_a_new_task_and_its_tests_work_as_written(tmp_path, monkeypatch):
    shown = called("new", tmp_path / "riddles")
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
    assert called("new", "riddles").exit_code == 0
    shown = called("train", "riddles.yaml", "--smoke", "--out", "run")
    assert shown.exit_code == 0, shown.output
    assert "held-out reward" in shown.stdout


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "test_riddles.py").write_text("mine")
    shown = called("new", tmp_path / "riddles")
    assert shown.exit_code == 2
    assert "test_riddles.py already exists" in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_riddles.py"]


def test_a_section_of_a_config_can_be_checked(tmp_path):
    config = germline.load_config({"task": str(file(tmp_path, RIGHT))})
    assert germline.check_task(config.task, prompts=0).problems == ()
    with pytest.raises(GermlineError, match="no kind 'numbers'"):
        germline.check_task("numbers")


def test_a_run_whose_task_file_is_gone_is_told_to_restore_it(tmp_path):
    section = {"kind": "python", "path": str(tmp_path / "gone.py")}
    with pytest.raises(GermlineError, match="germline new NAME"):
        make_task(load_config({"task": section}).task)
    with pytest.raises(GermlineError, match="restore the file of this run"):
        make_task(load_config({"task": {**section, "digest": "0" * 64}}).task)


def test_a_run_that_asks_for_more_examples_than_a_split_has_warns(tmp_path, caplog):
    path = str(file(tmp_path, RIGHT))
    config = {"task": path, "engine": "toy", "batch_size": 500, "held_out": {"examples": 7}}
    for settings, warned in ((config, 2), ({"task": path, "engine": "toy"}, 0)):
        caplog.clear()
        loaded = load_config(settings)
        check_run(loaded, make_task(loaded.task))
        assert caplog.text.count("and all of them are used") == warned
