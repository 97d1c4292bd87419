"""One recording of the program per engine and space, each with the interpreter it needs."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.engines_real.program import Record, load

ROOT = Path(__file__).parents[2]
REFERENCE: dict[str, Any] = {"kind": "inprocess", "threads": 1}
# Other kernels for the same numbers: they differ in rounding only.
INPROCESS: dict[str, Any] = {**REFERENCE, "members_per_batch": 1}
TIMEOUT_S = 900
SHOWN = 6000  # last characters of the output of a failed process


@dataclass(frozen=True)
class Case:
    """An engine of the suite.

    Attributes:
        section: of the config.
        needs: the environment of the engine, if it has one.
        transport: how the environment is used: its interpreter runs the program, or is
            `engine.python`.
    """

    section: dict[str, Any]
    needs: str | None = None
    transport: Literal["inside", "python"] = "inside"


CASES = {
    "inprocess": Case(INPROCESS),
    "vllm": Case(
        {"kind": "vllm", "threads": 1, "options": {"kv_cache_memory_bytes": 2 * 10**8}}, "vllm"
    ),
    "sglang": Case({"kind": "sglang", "launch": True, "threads": 1}, "sglang", "python"),
}


@dataclass
class Recordings:
    """All recordings of a session, made once each."""

    folder: Path
    finished: dict[tuple[str, str], subprocess.CompletedProcess[str]] = field(default_factory=dict)

    def reference(self, space: str) -> Path:
        """Return the folder of the reference recording."""
        return self._record("reference", Case(REFERENCE), space, None)

    def of(self, case: str, space: str) -> Path:
        """Return the folder of a case's recording."""
        return self._record(case, CASES[case], space, self.reference(space))

    def _record(self, name: str, case: Case, space: str, reference: Path | None) -> Path:
        folder = self.folder / name.replace(" ", "-") / space
        if (name, space) not in self.finished:
            python, section = self._environment(case)
            folder.mkdir(parents=True)
            command = [python, "-m", "tests.engines_real.program"]
            command += [json.dumps(section), space, str(folder)]
            command += [str(reference)] if reference else []
            self.finished[name, space] = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        ended = self.finished[name, space]
        if ended.returncode:  # kept, because a second attempt would fail too
            pytest.fail(f"{name} in {space} ended with:\n{ended.stdout[-SHOWN:]}")
        return folder

    def _environment(self, case: Case) -> tuple[str, dict[str, Any]]:
        """Return the interpreter of the program, and the section of its config."""
        if not case.needs:
            return sys.executable, case.section
        python = interpreter(case.needs)
        if case.transport == "inside":
            return python, case.section
        return sys.executable, case.section | {"python": python}


def variable(environment: str) -> str:
    """Return the variable that names the interpreter of an engine's environment."""
    return f"GERMLINE_{environment.upper()}_PYTHON"


def interpreter(environment: str) -> str:
    """Return the interpreter of an engine's environment, or skip the test that needs it."""
    if variable(environment) not in os.environ:
        pytest.skip(f"${variable(environment)} is not set; `make equality` builds it and sets it")
    return os.environ[variable(environment)]


@dataclass(frozen=True)
class Pair:
    """The recording of an engine, and the reference recording."""

    folder: Path
    reference: Path

    @cached_property
    def one(self) -> Record:
        """The outputs of the engine."""
        return load(self.folder)

    @cached_property
    def other(self) -> Record:
        """The outputs of the reference."""
        return load(self.reference)
