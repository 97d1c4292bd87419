"""docs/environments.md as a reader follows it: its files are written, its commands are called."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import germline
from germline.cli.application import app

PAGE = Path(__file__).parents[1] / "docs" / "environments.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.]+)`:\n```\w+\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
(OWN,) = re.findall(r"^```\n(germline check .*?)^```", TEXT, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, block in FILES.items():
        Path(name).write_text(block, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_an_environment_of_ones_own_is_checked_and_trained_on(folder):
    for line in OWN.splitlines():
        # Two generations tell whether it works; the page's own numbers take half a minute.
        short = ["generations=2"] if line.startswith("germline train") else []
        done = CliRunner().invoke(app, shlex.split(line)[1:] + short)
        assert done.exit_code == 0, (line, done.output)
    assert Path("runs/thermostat/journal.jsonl").read_text(encoding="utf-8").count("\n") == 2


def test_the_environment_is_shorter_than_thirty_lines_and_passes_its_own_tests(folder):
    assert len(FILES["thermostat.py"].splitlines()) < 30
    (block,) = [block for block in BLOCKS if "class Test" in block]
    (folder / "test_thermostat.py").write_text(block, encoding="utf-8")
    tests = runpy.run_path("test_thermostat.py")["TestThermostat"]()
    for name in dir(tests):
        if name.startswith("test_"):
            getattr(tests, name)()


def test_a_class_of_trl_is_a_task(folder):
    assert germline.check_task("accounts.py", prompts=0).problems == ()
