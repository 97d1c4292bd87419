"""Every shipped config is valid and runs, and so does every file in examples/."""

import subprocess
from pathlib import Path

import pytest

from germline import train
from germline.config import load_config
from tests.hang_limit import HANG_S
from tests.other_process import python
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
    environment = {"MPLCONFIGDIR": str(tmp_path_factory.mktemp("fonts"))}
    python("-c", "import matplotlib.font_manager", **environment)
    return environment


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_without_a_word_of_complaint(path, tmp_path, fonts):
    done = python("-W", "error", path, cwd=tmp_path, HF_HUB_OFFLINE="1", **fonts)
    assert done.stderr == ""
    assert done.stdout


SCRIPT = Path(__file__).parents[1] / "examples" / "ray_on_slurm.sh"


STUBS = {
    "scontrol": "echo node0; echo node1",
    "srun": """while [[ $1 == --* ]]; do shift; done
        if [[ $1 == hostname ]]; then echo "10.0.0.7 fe80::1"; else echo "srun $*" >>"$LOG"; fi""",
    "ray": "exit 0",
    "germline": """until [[ $(wc -l <"$LOG") -ge 2 ]]; do sleep 0.05; done 2>/dev/null
        echo "germline $*" >>"$LOG"; exit 3""",
}


@pytest.mark.parametrize(("what", "verb"), [("configs/ray.yaml", "train"), ("run", "resume")])
def test_it_starts_a_head_the_other_nodes_and_the_run(what, verb, tmp_path):
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    log = tmp_path / "log"
    slurm = {"SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_ID": "20042", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(
        ["bash", SCRIPT, what, "fleet.engines=4"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(log), **slurm},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 3, done.stderr  # that of the run
    lines = sorted(log.read_text().splitlines())
    assert lines[0] == (
        f"germline {verb} {what} fleet.kind=ray fleet.address=10.0.0.7:20042 "
        "fleet.placement_timeout_s=120 "
        "fleet.engines=4"
    )
    start = "srun ray start --block --disable-usage-stats --num-cpus=1"
    assert lines[1] == f"{start} --address=10.0.0.7:20042"
    assert lines[2].startswith(f"{start} --head --node-ip-address=10.0.0.7 --port=20042")
