"""The script for SLURM is one that bash and Ray understand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang_limit import HANG_S

SCRIPT = Path(__file__).parents[1] / "examples" / "ray_on_slurm.sh"
TEXT = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.mark.slow
def test_every_option_for_ray_is_one_it_has():
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    shown = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    known = set(re.findall(r"--[a-z-]+", shown))
    lines = [line for line in TEXT.splitlines() if "ray start" in line or "${start[@]}" in line]
    asked = {
        option
        for line in lines
        # What stands before belongs to srun.
        for option in re.findall(r"--[a-z-]+", re.split(r"ray start|\$\{start", line)[1])
    }
    assert {"--head", "--address", "--num-cpus", "--block"} <= asked <= known


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
