"""Runs the Python blocks of README.md and docs/ as tests, each page in a folder of its own.

pytest asks a `conftest.py` about files beside and below it only, so this one stands at the root;
fixtures of the tests themselves are in `tests/conftest.py`.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parent
LINKED = ("configs", "examples")

# Imported by vLLM's workers in vLLM's own environment, which the tests in engines_real/ enter.
collect_ignore = ["germline/engines/vllm/worker_extension.py"]


def enter_a_fresh_folder(namespace: dict[str, Any]) -> None:
    """Let a page write run directories without leaving any, and still find the shipped configs."""
    folder = tempfile.TemporaryDirectory()
    for name in LINKED:
        if (ROOT / name).exists():
            (Path(folder.name) / name).symlink_to(ROOT / name)
    namespace["_folder"], namespace["_before"] = folder, Path.cwd()
    os.chdir(folder.name)


def leave_it(namespace: dict[str, Any]) -> None:
    """Go back and remove what the page wrote."""
    os.chdir(namespace["_before"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/**/*.md", "docs/*.md"],
    setup=enter_a_fresh_folder,
    teardown=leave_it,
).pytest()
