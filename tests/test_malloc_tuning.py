"""The heap keeps what generation frees: counted in page faults of processes of their own."""

import os
import platform
import subprocess
import sys

import pytest

from germline.engines import malloc_tuning

PLAYED_AGAIN = """
import resource
from germline.config import load_config
from germline.run.build_parts import make_engine
from germline.tasks import make_task
from germline.strategies import make_strategy
from germline.types import Decoding

config = load_config(
    {"space": "low_rank", "engine": {"threads": 1}, "strategy": {"population": 16, "sigma": 0.005}}
)
engine, task = make_engine(config), make_task(config.task)
members = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
def faults():
    engine.generate(members, task.examples("train")[:16], Decoding(16))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = [faults() for _ in range(3)][-1]
print(faults() - before)
"""

on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def faults(**environment):
    run = [sys.executable, "-c", PLAYED_AGAIN]
    return int(subprocess.check_output(run, env={**os.environ, **environment}, text=True))


@pytest.mark.slow
@on_glibc
def test_a_generation_played_again_asks_the_system_for_nothing():
    given_back = faults(MALLOC_TRIM_THRESHOLD_="131072")  # the user's word, which counts
    assert given_back > 1000
    assert faults() < given_back / 10


@on_glibc
@pytest.mark.parametrize("name", [None, "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_user_decides(monkeypatch, name):
    for one in malloc_tuning._OF_THE_USER:
        monkeypatch.delenv(one, raising=False)
    if name:
        monkeypatch.setenv(name, "")
    assert malloc_tuning.keep_freed_memory() is (name is None)


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not malloc_tuning.keep_freed_memory()
