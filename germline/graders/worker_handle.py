"""The parent's handle of one grader worker: it starts, watches, kills and restarts the process.

Verdicts come in the order of the texts, which tells which text caused the end of a worker:

- A text takes longer than the timeout: the worker is killed, the text fails, the other texts are
  graded.
- A worker dies while it grades a text: a new worker tries that text once more; a second death fails
  the text. The first death may have had another cause, such as a machine without free memory.
- A worker dies between texts: no text fails; after `_STARTS` such ends in a row an error is raised.
"""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from germline.errors import GermlineError
from germline.graders.child_process import ChildProcess, module_search_path
from germline.graders.worker_messages import STEP_BEGINS, GraderSetup, Item, Verdict

WORKER = "germline.graders.worker_process"

GRACE_S = 0.25
"""Time a worker gets to stop by itself after the timeout, before it is killed, in seconds."""

START_S = 120.0
"""Longest time for a worker to start and import the grader's module, in seconds."""

PASSED_ON = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TZ|TMPDIR|TEMP|TMP|VIRTUAL_ENV|CONDA_PREFIX|PYTHON\w*"
    r"|LD_LIBRARY_PATH|DYLD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|(OMP|GOMP|MKL|OPENBLAS)_\w+"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|NLTK_DATA|XDG_CACHE_HOME"
    r"|HF_(HOME|HUB_CACHE|HUB_OFFLINE|DATASETS_CACHE|DATASETS_OFFLINE)"
)
"""Names of the environment variables that graders get: they run code on what a model writes, so
tokens and keys, such as HF_TOKEN, are passed on where `graders.variables` names them."""

_STARTS = 3
_DEATHS = 2


@dataclass(frozen=True)
class _Ending:
    """How a worker ended early, and whether it was grading an item."""

    grading: bool
    timed_out: bool
    seen: str


class WorkerHandle:
    """A worker process that is replaced whenever it ends. One thread uses it; any may `stop` it."""

    def __init__(self, setup: GraderSetup, name: str) -> None:
        self._setup = setup
        self._name = name
        self._lock = threading.Lock()
        self._stopped = False
        self._process: ChildProcess | None = None
        self.output: Path | None = None
        """The file that gets what the grader prints; None is standard error."""

    def grade(self, items: Sequence[Item]) -> list[Verdict]:
        """Grade every item, even when some of them hang or kill the worker."""
        verdicts: list[Verdict] = []
        ends: Counter[int | None] = Counter()
        while len(verdicts) < len(items):
            ending = self._attempt(items, verdicts)
            if ending is None:
                break
            culprit = len(verdicts) if ending.grading else None
            ends[culprit] += 1
            if culprit is None:
                if ends[None] == _STARTS:
                    raise GermlineError(
                        f"graders: the worker process of {self._name} ended {_STARTS} times "
                        f"outside any text ({ending.seen}); its messages are in "
                        f"{self.output or 'standard error'}"
                    )
            elif ending.timed_out:
                reason = f"timeout after {self._setup.timeout_s} s"
                verdicts.append(self._setup.grade({}, reason))
            elif ends[culprit] == _DEATHS:
                reason = f"the grader process died twice: {ending.seen}"
                verdicts.append(self._setup.grade({}, reason))
        return verdicts

    def stop(self) -> None:
        """End the worker at once, for good; a `grade` in progress raises GermlineError."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Release everything; called by the thread that used it, or after that has ended."""
        self.stop()
        self._discard()

    def _attempt(self, items: Sequence[Item], verdicts: list[Verdict]) -> _Ending | None:
        """Add the verdicts that are missing, until all are there or the worker ends."""
        process = self.start()
        grading = False
        try:
            process.send((self.output, items[len(verdicts) :]))
            while len(verdicts) < len(items):
                limit_s = self._setup.timeout_s + GRACE_S if grading else START_S
                late_s = limit_s + GRACE_S + time.monotonic()
                message = process.read(limit_s)
                if message is None and time.monotonic() > late_s:
                    # This process woke late, so both stood still, with the machine.
                    message = process.read(limit_s)
                if message is None:
                    self._discard()
                    return _Ending(grading, timed_out=True, seen="killed: it took too long")
                grading = True
                if message != STEP_BEGINS:
                    verdicts.append(cast(Verdict, message))
        except EOFError:
            ending = _Ending(grading, timed_out=False, seen=process.exit_reason())
            self._discard()
            return ending
        return None

    def start(self) -> ChildProcess:
        """Start the worker unless it is running, and wait until it has loaded the grader."""
        if self._process is not None and self._process.runs():
            return self._process
        self._discard()
        with self._lock:
            if self._stopped:
                raise GermlineError("graders: the pool was closed while it was grading")
            environment = grader_environment(self._setup.variables)
            process = self._process = ChildProcess(WORKER, environment)
        try:
            process.send(self._setup)
            answer = process.read(START_S)
            why = f"no answer in {START_S} s" if answer is None else str(answer)
        except EOFError:
            why = f"it ended with {process.exit_reason()}"
        if why != STEP_BEGINS:
            self._discard()
            raise GermlineError(
                f"graders: the worker process cannot load the grader {self._name}: {why}. A grader "
                "must be a function of a module, or an object of a class of a module, that a new "
                f"process can import (search path: {module_search_path()})"
            )
        return process

    def _discard(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()


def grader_environment(variables: Collection[str]) -> dict[str, str]:
    """Return the environment of a worker: of this process's, these and what `PASSED_ON` names."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in variables or PASSED_ON.fullmatch(name)
    }
