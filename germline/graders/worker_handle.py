"""One grader worker seen from its parent: started, fed, watched, killed, started again.

Whose fault an end is follows from the progress the worker left in shared memory:

- A text that takes longer than the timeout: the worker is killed, the text fails, the rest goes on.
- A worker that dies while grading a text: that text is tried once more in a fresh worker; a second
  death fails it. Memory may have run out for another reason the first time.
- A worker that dies between texts: no text is blamed; after `_STARTS` such ends in a row it is an
  error.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from germline.graders.worker_messages import (
    FrameReader,
    GraderSetup,
    GradingFailed,
    Item,
    SharedProgress,
    Verdict,
    WorkerReady,
    write_frame,
)
from germline.types import GermlineError

GRACE_S = 0.25
"""How long a worker may need to stop by itself after the timeout, before it is killed."""

START_S = 120.0
"""Longest time for a worker to start and import the grader's module."""

_STARTS = 3
_DEATHS = 2


@dataclass(frozen=True)
class _Ending:
    """How an attempt was cut short: by which item (None: nobody's fault), and what was seen."""

    item: int | None
    timed_out: bool
    seen: str


class _Process:
    """One running worker, from launch to end."""

    def __init__(self, descriptor: int) -> None:
        command = [sys.executable, "-P", "-m", "germline.graders.worker_process", str(descriptor)]
        try:
            # A session of its own: Ctrl-C is the parent's to handle, and whatever the grader starts
            # can be killed with it.
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": module_search_path()},
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        except OSError as error:
            raise GermlineError(
                f"graders: a worker process cannot start ({' '.join(command)}): {error}"
            ) from error
        self._input = cast(BinaryIO, self._popen.stdin)
        self._output = cast(BinaryIO, self._popen.stdout)
        self._reader = FrameReader(self._output)

    def runs(self) -> bool:
        return self._popen.poll() is None

    def send(self, value: object) -> None:
        """Send one value; raises EOFError when the worker is gone."""
        try:
            write_frame(self._input, value)
        except BrokenPipeError:
            raise EOFError from None

    def read(self, timeout_s: float) -> object | None:
        """Return the next value or None; raises EOFError when the worker is gone."""
        return self._reader.read(timeout_s)

    def kill(self) -> None:
        if self.runs():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()

    def last_words(self) -> str:
        """Wait for a worker whose pipe has ended, and say how it ended."""
        try:
            status = self._popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its pipe"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def close(self) -> None:
        self.kill()
        # What could not be delivered is lost with the worker, and sent again to the next one.
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._output.close()


class WorkerHandle:
    """A worker process that is replaced whenever it ends. Used by one thread; `stop` by any."""

    def __init__(self, setup: GraderSetup, name: str) -> None:
        self._setup = setup
        self._name = name
        self._lock = threading.Lock()
        self._stopped = False
        self._process: _Process | None = None
        with tempfile.TemporaryFile() as memory:
            memory.truncate(SharedProgress.SIZE)
            self._descriptor = os.dup(memory.fileno())
        self._progress = SharedProgress(self._descriptor)

    def start(self) -> None:
        """Start the worker unless it runs, and wait until it has loaded the grader.

        Raises:
            GermlineError: it cannot start or cannot load the grader.
        """
        self._running()

    def grade(self, items: Sequence[Item]) -> list[Verdict]:
        """Grade every item, whatever some of them do to the worker.

        Raises:
            GermlineError: the worker cannot start, or keeps dying without grading anything.
        """
        verdicts: dict[int, Verdict] = {}
        ends: Counter[int | None] = Counter()
        while pending := [index for index in range(len(items)) if index not in verdicts]:
            received, ending = self._attempt([items[index] for index in pending])
            verdicts.update(zip(pending, received, strict=False))
            if ending is None:
                continue
            culprit = None if ending.item is None else pending[ending.item]
            ends[culprit] += 1
            if culprit is None:
                if ends[None] == _STARTS:
                    raise GermlineError(
                        f"graders: the worker process of {self._name} ended {_STARTS} times "
                        f"outside any text ({ending.seen}); its standard error says more"
                    )
            elif ending.timed_out:
                verdicts[culprit] = GradingFailed(f"timeout after {self._setup.timeout_s} s")
            elif ends[culprit] == _DEATHS:
                verdicts[culprit] = GradingFailed(f"the grader process died twice: {ending.seen}")
        return [verdicts[index] for index in range(len(items))]

    def stop(self) -> None:
        """End the worker at once, for good; a `grade` in progress raises GermlineError."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Give everything back; called by the thread that used it, or after that has ended."""
        self.stop()
        self._discard()
        self._progress.close()
        os.close(self._descriptor)

    def _attempt(self, items: list[Item]) -> tuple[list[Verdict], _Ending | None]:
        """Grade until all items are done or the worker ends; return what was received."""
        process = self._running()
        self._progress.mark(-1)
        received: list[Verdict] = []
        ending: _Ending | None = None
        try:
            process.send(items)
            while len(received) < len(items) and ending is None:
                # No longer than one timeout: by then another item may be in work.
                batch = process.read(min(self._patience_s(), self._setup.timeout_s))
                if batch is not None:
                    received += cast("list[Verdict]", batch)
                elif self._patience_s() <= 0:
                    ending = self._stop_hanging(process, received)
        except EOFError:
            index, _ = self._progress.read()
            blamed = index if index >= len(received) else None
            ending = _Ending(blamed, timed_out=False, seen=process.last_words())
        if ending is not None:
            self._discard()
        return received, ending

    def _patience_s(self) -> float:
        """Return how much longer the item in work may take."""
        index, started = self._progress.read()
        allowed = self._setup.timeout_s + GRACE_S if index >= 0 else START_S
        return started + allowed - time.monotonic()

    def _stop_hanging(self, process: _Process, received: list[Verdict]) -> _Ending:
        hanging, _ = self._progress.read()
        process.kill()
        with contextlib.suppress(EOFError):
            while (batch := process.read(START_S)) is not None:
                received += cast("list[Verdict]", batch)
        # The worker may have finished the item in the moment before it was killed.
        last, _ = self._progress.read()
        blamed = hanging if hanging == last and hanging >= len(received) else None
        return _Ending(blamed, timed_out=True, seen="killed: it took too long")

    def _running(self) -> _Process:
        """Return the worker, started anew where it has ended."""
        if self._process is not None and self._process.runs():
            return self._process
        self._discard()
        with self._lock:
            if self._stopped:
                raise GermlineError("graders: the pool was closed while it was grading")
            process = self._process = _Process(self._descriptor)
        try:
            process.send(self._setup)
            answer = process.read(START_S)
            why = answer.refusal if isinstance(answer, WorkerReady) else f"no answer in {START_S} s"
        except EOFError:
            why = f"it ended with {process.last_words()}"
        if why is not None:
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


def module_search_path() -> str:
    """Return this process's module search path, so that the worker finds the same modules."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
