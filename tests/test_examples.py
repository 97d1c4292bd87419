"""Every file in examples/ runs as it stands, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang_limit import HANG_S

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_without_a_word_of_complaint(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(tmp_path)},
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout
