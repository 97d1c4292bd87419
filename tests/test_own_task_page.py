"""docs/own-task.md as a reader follows it: its files are written, its commands are called."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.graders.builtin_rewards import rewards
from germline.tasks.python_file import FileSettings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "own-task.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:^`([\w.]+)`:\n)?^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_page_can_be_followed_command_by_command(folder):
    called = []
    for name, language, block in BLOCKS:
        if name:
            Path(name).write_text(block, encoding="utf-8")
        for line in block.splitlines() if not language else ():
            # Two generations tell whether it works; the page's own numbers take half a minute.
            short = ["generations=2"] if line.startswith("germline train") else []
            done = CliRunner().invoke(app, shlex.split(line)[1:] + short)
            assert done.exit_code == 0, (line, done.output)
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


def test_the_tests_of_a_new_task_need_pytest_alone_in_a_clone(folder):
    """`make demo` installs none of the tools that the conftest.py of the clone uses."""
    assert CliRunner().invoke(app, ["new", "sums"]).exit_code == 0
    lacking = ("sybil", "xdist", "beartype", "hypothesis")
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "conftest", "test_sums.py"]
    code = (
        f"import sys; sys.modules |= dict.fromkeys({lacking}); sys.path[:0] = ['', {str(ROOT)!r}]\n"
        f"import pytest; sys.exit(pytest.main({options}))"
    )
    clean = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
