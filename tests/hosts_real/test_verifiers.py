"""Environments of verifiers: tests/test_verifiers.py, run where verifiers is installed."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = """
import sys
sys.path += {paths!r}  # torch and pytest; what verifiers needs comes first
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/test_verifiers.py"]))
"""


def test_the_tests_of_verifiers_pass_in_its_environment():
    paths = [sysconfig.get_path("purelib")]
    done = subprocess.run(
        [os.environ["GERMLINE_VERIFIERS_PYTHON"], "-c", RUN.format(paths=paths)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode:
        pytest.fail(done.stdout[-6000:])
    assert "skipped" not in done.stdout.splitlines()[-1]
