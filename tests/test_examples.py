"""Every file in examples/ runs as it stands, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang_limit import HANG_S

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def fonts(tmp_path_factory):
    """Matplotlib's list of fonts: matplotlib prints a line while it is made on a slow machine."""
    environment = os.environ | {"MPLCONFIGDIR": str(tmp_path_factory.mktemp("fonts"))}
    listing = [sys.executable, "-c", "import matplotlib.font_manager"]
    subprocess.run(listing, env=environment, capture_output=True, timeout=HANG_S, check=True)
    return environment


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.slow
def test_an_example_runs_without_a_word_of_complaint(path, tmp_path, fonts):
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=fonts | {"HF_HUB_OFFLINE": "1"},
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout
