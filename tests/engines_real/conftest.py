"""Fixtures that run the program once per engine and space in a session, for all tests."""

import os
from pathlib import Path

import pytest

from tests.engines_real.recordings import CASES, Pair, Recordings, variable

HERE = Path(__file__).parent
REASON = "no environment of vLLM or SGLang is set: `make equality` builds and sets them"


def pytest_collection_modifyitems(items):
    """Skip the suite if it would compare the inprocess engine only with itself."""
    if any(case.needs and variable(case.needs) in os.environ for case in CASES.values()):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    return Recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="session")
def pair(recordings, case, space):
    """The recording of an engine, and that of the reference."""
    return Pair(recordings.of(case, space), recordings.reference(space))
