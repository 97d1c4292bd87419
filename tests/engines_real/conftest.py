"""Performances of the program are given once per session, however many tests look at them."""

import os
from pathlib import Path

import pytest

from tests.engines_real.stage import CASES, Pair, Stage, variable

HERE = Path(__file__).parent
REASON = "no real engine is named to compare with: `make equality` builds and names them"


def pytest_collection_modifyitems(items):
    """Skip the suite where it would compare the inprocess engine with itself alone."""
    if any(case.needs and variable(case.needs) in os.environ for case in CASES.values()):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
    stage = Stage(tmp_path_factory.mktemp("performances"))
    with stage.started:
        yield stage


@pytest.fixture(scope="session")
def pair(stage, case, space):
    """A performance, and that of the reference."""
    return Pair(stage.of(case, space), stage.reference(space))
