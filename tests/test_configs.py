"""Every shipped config is valid and runs, and so does every file in examples/."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from germline import train
from germline.config import load_config
from tests.hang_limit import HANG_S
from tests.small_runs import small

pytestmark = pytest.mark.usefixtures("graded_in_process")

FOLDER = Path(__file__).parents[1] / "configs"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))


QUICK = {
    *("demo", "cma_norms", "es_sample_gd", "prompt_search", "randopt"),
    *("arithmetic_zo_grpo", "arithmetic_ppo"),
}
"""A config of each strategy, method and space."""
RUNS = [
    pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.slow, id=path.stem)
    for path in CONFIGS
    # Papers and recipes differ from the others in their model and in sizes.
    if path.parent == FOLDER or path.parent.name == "smollm2"
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_is_valid(path):
    load_config(path)


@pytest.mark.parametrize("path", RUNS)
def test_a_shipped_config_runs_two_generations_of_nano(path, tmp_path):
    config = load_config(path)
    training = train(load_config(config, small(config)), tmp_path / "run")
    assert [record.generation for record in training] == [0, 1]
    assert training.end is not None


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
