"""Skips the tests of harnesses whose environment is not set."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Skip the tests of a harness that `make hosts` has not built."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        variable = f"GERMLINE_{item.path.stem.removeprefix('test_').upper()}_PYTHON"
        if variable not in os.environ:
            reason = f"${variable} is not set: `make hosts` builds and sets it"
            item.add_marker(pytest.mark.skip(reason=reason))
