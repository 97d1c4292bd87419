"""docs/own-task.md and docs/environments.md as a reader follows them: files, then commands."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

import germline
from germline.graders.builtin_rewards import rewards
from germline.tasks.python_file import FileSettings
from tests.command_line import command

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "own-task.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:^`([\w.]+)`:\n)?^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


ENVIRONMENTS = PAGE.with_name("environments.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def environments(folder):
    for name, block in re.findall(r"^`([\w.]+)`:\n```\w+\n(.*?)^```", ENVIRONMENTS, re.M | re.S):
        Path(name).write_text(block, encoding="utf-8")
    return folder


def call(line):
    # Two generations tell whether it works; sigma and learning rate would be measured first.
    small = ["generations=2", "strategy.sigma=0.01", "strategy.learning_rate=0.01"]
    short = small if line.startswith("germline train") else []
    done = command(*shlex.split(line)[1:], *short)
    assert done.exit_code == 0, (line, done.output)


def test_the_page_can_be_followed_command_by_command(folder):
    called = []
    for name, language, block in BLOCKS:
        if name:
            Path(name).write_text(block, encoding="utf-8")
        for line in block.splitlines() if not language else ():
            call(line)
            called.append(line)
    assert called[0] == "germline new sums"
    assert called[-1] == "germline train numbers.yaml --out runs/numbers"
    assert len(called) == 6


def test_the_python_file_of_the_page_is_a_task(folder):
    (block,) = [block for name, _, block in BLOCKS if name == "capitals.py"]
    Path("capitals.py").write_text(block, encoding="utf-8")
    assert germline.check_task("capitals.py", prompts=0).problems == ()


def test_the_tables_name_every_reward_and_setting():
    rows = re.findall(r"^\| `(\w+)", TEXT, re.MULTILINE)
    assert {*rewards(), *FileSettings.model_fields} <= set(rows)


def test_an_environment_of_ones_own_is_checked_and_trained_on(environments):
    (commands,) = re.findall(r"^```\n(germline check .*?)^```", ENVIRONMENTS, re.M | re.S)
    for line in commands.splitlines():
        call(line)
    assert Path("runs/thermostat/journal.jsonl").read_text(encoding="utf-8").count("\n") == 2


def test_the_environment_is_shorter_than_thirty_lines_and_passes_its_own_tests(environments):
    assert len(Path("thermostat.py").read_text(encoding="utf-8").splitlines()) < 30
    blocks = re.findall(r"^```python\n(.*?)^```", ENVIRONMENTS, re.M | re.S)
    (block,) = [block for block in blocks if "class Test" in block]
    (environments / "test_thermostat.py").write_text(block, encoding="utf-8")
    tests = runpy.run_path("test_thermostat.py")["TestThermostat"]()
    for name in dir(tests):
        if name.startswith("test_"):
            getattr(tests, name)()


def test_a_class_of_trl_is_a_task(environments):
    assert germline.check_task("accounts.py", prompts=0).problems == ()
