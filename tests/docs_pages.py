"""Runs the Python blocks of README.md and docs/ as tests, each page in a folder of its own.

The `conftest.py` at the root takes these hooks of pytest; fixtures of the tests themselves are in
`tests/conftest.py`.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from xdist.scheduler import LoadScopeScheduling

from tests import type_checking

ROOT = Path(__file__).parents[1]
LINKED = ("configs", "examples")
IN_ONE_WORKER = ("tests/engines_real/",)
"""Folders whose files share session fixtures that take minutes to compute."""

FROM_PEFT = "ignore:.is_gradient_checkpointing.:FutureWarning"
"""A warning of peft with a newer transformers, which a page that loads an adapter shows."""

# Set before torch is imported: a second thread slows models as small as those of the tests, and
# the workers of `pytest -n` share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

type_checking.install()

# Imported by vLLM's workers in vLLM's own environment, which the tests in engines_real/ enter.
collect_ignore = [
    "germline/engines/vllm/worker_extension.py",
    # They import verifiers, which is installed in an environment of its own.
    "germline/environments/verifiers_endpoint.py",
    "germline/environments/verifiers_taskset.py",
    "germline/tasks/verifiers_task.py",
]


def enter_a_fresh_folder(namespace: dict[str, Any]) -> None:
    """Let a page write run directories without leaving any, and still find the shipped configs."""
    folder = tempfile.TemporaryDirectory()
    for name in LINKED:
        if (ROOT / name).exists():
            (Path(folder.name) / name).symlink_to(ROOT / name)
    namespace["_folder"], namespace["_before"] = folder, Path.cwd()
    # As in a script. Without a name, pickle looks for the page's functions in every loaded module.
    namespace["__name__"] = "__main__"
    os.chdir(folder.name)


def leave_it(namespace: dict[str, Any]) -> None:
    """Go back and remove what the page wrote."""
    os.chdir(namespace["_before"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    path=str(ROOT),
    patterns=["README.md", "docs/**/*.md", "docs/*.md"],
    setup=enter_a_fresh_folder,
    teardown=leave_it,
).pytest()


class FileScheduling(LoadScopeScheduling):
    """Sends whole files to the workers of `pytest -n`: the tests of a file share its fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in IN_ONE_WORKER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    """Distribute files in the order of the collection: the doctests, which are short, come last."""
    config.option.loadscopereorder = False
    return FileScheduling(config, log)


def pytest_runtest_logstart() -> None:
    """Count calls anew for every test."""
    type_checking.calls.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the code blocks of a page in order: a block uses names of the blocks above it."""
    for item in items:
        if item.path.suffix == ".md":
            item.add_marker(pytest.mark.random_order(disabled=True))
            item.add_marker(pytest.mark.filterwarnings(FROM_PEFT))
