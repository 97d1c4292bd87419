"""The script for SLURM is one that bash and Ray understand."""

import subprocess
from pathlib import Path

import pytest

from tests.hang_limit import HANG_S

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
