"""The grader process: reads items from its parent, grades them one by one, sends verdicts.

`germline.graders.worker_handle` starts it as `python -m germline.graders.worker_process
CONNECTION_FD`. It ends when the connection ends, so it never outlives its parent; on Linux the
kernel ends it even while it hangs.

An alarm that raises inside the grader stops a text that takes too long, at no cost. Where the alarm
has no effect (one long call into C, a grader that swallows exceptions), the parent kills the
process. A text that needs more memory than the worker's limit gets a `MemoryError`. What a grader
prints goes to standard error, or to the file whose path it receives.
"""

import ctypes
import math
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, cast

from germline.errors import shown
from germline.example import EpisodeBatch, Grade, Transcript
from germline.graders.worker_messages import (
    CAUSED_BY_CODE,
    STEP_BEGINS,
    STEP_LIMITS,
    EpisodesGraded,
    GradeMissingError,
    GraderSetup,
    InvalidGradeError,
    Item,
    PartsFailedError,
    PlayedEpisode,
    TimeUp,
    Verdict,
    as_number,
)

_SIGNALS = 8
"""Signals of the alarm within the time limit of a text."""

_LONGEST_REASON = 300
_PR_SET_PDEATHSIG = 1


class _Alarm:
    """Raises `TimeUp` inside the running code, `timeout_s` after the alarm was set.

    It counts signals, and one signal stands for all that fell into a time in which the process did
    not run: a machine that stood still for seconds makes no text fail.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._is_set = False  # whether an item is being graded, also after it has raised
        self._signals_left = 0  # it raises once, when this becomes 0

    def set(self) -> None:
        if self._timeout_s is None:
            return
        # Installed again for every item: a grader may use the alarm itself.
        signal.signal(signal.SIGALRM, self._ring)
        self._is_set = True
        self._signals_left = _SIGNALS
        every_s = self._timeout_s / _SIGNALS
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)

    def restart(self) -> None:
        """Set the alarm again while an item is graded."""
        if self._is_set:
            self.set()

    def stop(self) -> None:
        # Python may run a handler a little after its signal; a late call must have no effect.
        self._is_set = False
        self._signals_left = 0
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        self._signals_left -= 1
        if self._signals_left == 0:
            raise TimeUp("longer than graders.timeout_s")


class GradingLoop:
    """Grades one item after another.

    Args:
        grader: (text, example) -> parts; that of episodes: (transcript, example) -> parts or the
            environment's next message.
        setup: the rubric, and limits.
        timed: whether an alarm enforces the time limit; only a main thread can set one.
    """

    def __init__(
        self, grader: Callable[..., Any], setup: GraderSetup, *, timed: bool = True
    ) -> None:
        self._grader = grader
        self._setup = setup
        self._alarm = _Alarm(setup.timeout_s if timed else None)
        STEP_LIMITS[:] = [self._alarm.restart]

    def grade(self, item: Item) -> Verdict:
        """Grade one completion or episode; any failure of the grader becomes a verdict."""

        def graded() -> object:
            try:
                self._alarm.set()
                return self._grader(*item)
            finally:
                self._alarm.stop()

        return self._verdict(graded, item[0])

    def _verdict(
        self, graded: Callable[[], object], asked: str | Transcript | EpisodeBatch
    ) -> Verdict:
        try:
            parts = graded()
        except TimeUp:
            return self._setup.grade({}, f"timeout after {self._setup.timeout_s} s")
        except InvalidGradeError as error:
            return InvalidGradeError(str(error))
        except GradeMissingError as error:
            return self._setup.missing(str(error)[:_LONGEST_REASON])
        except PartsFailedError as error:
            return self._values(error.values, str(error))
        except MemoryError:
            limit = self._setup.memory_bytes
            most = "there is" if limit is None else f"{limit / 1e9:g} GB (graders.memory_gb)"
            return self._setup.grade({}, f"out of memory: it needs more than {most}")
        except CAUSED_BY_CODE as error:
            return self._setup.grade({}, f"{type(error).__name__}: {error}"[:_LONGEST_REASON])
        if isinstance(parts, str) and isinstance(asked, Transcript):
            if not asked.is_final:
                return Grade(math.nan, {}, observation=parts)
            return InvalidGradeError(
                "must return the parts of the rubric when an episode is cut "
                f"(Transcript.is_final), returned the message {shown(parts)}"
            )
        if isinstance(asked, EpisodeBatch):
            played = cast("list[PlayedEpisode]", parts)
            verdicts = tuple(self._verdict(one.result, "") for one in played)
            return EpisodesGraded(verdicts, tuple(one.ended for one in played))
        return self._values(parts)

    def _values(self, parts: object, failure: str | None = None) -> Verdict:
        """Check the parts, which are all of them unless there is a failure."""
        setup, names = self._setup, tuple(self._setup.rubric)
        if not isinstance(parts, Mapping) or (failure is None and set(parts) != set(names)):
            return InvalidGradeError(f"must return the parts {names}, returned {shown(parts)}")
        values = {name: as_number(parts[name]) for name in names if name in parts}
        for name, value in values.items():
            weight, floor = setup.rubric[name], setup.floor[name]
            if not math.isfinite(value):
                return InvalidGradeError(
                    f"must return a finite number for the part {name!r}, returned "
                    f"{shown(parts[name])}: raise an exception for a completion that has no "
                    "value, which earns the floor"
                )
            if weight * value < weight * floor:
                largest = ", the largest one as its weight is negative" if weight < 0 else ""
                return InvalidGradeError(
                    f"gave {value:g} for the part {name!r}, worse than its floor {floor:g}. What "
                    f"fails earns the floor, so the floor must be the worst value{largest}: limit "
                    "the value, or change the floor (settings['floor'] in a task file, "
                    "task.reward_floor for functions from Python, task.floor for verifiers)"
                )
        return setup.grade(values, failure)


def main(descriptor: int) -> None:
    """Load the grader, then grade items until the connection ends."""
    parent = Connection(descriptor)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword
    _die_with_parent()
    # A child that a grader forks does not keep the connection open when this process dies.
    os.register_at_fork(after_in_child=parent.close)
    # Half a surrogate pair can be printed too, and a killed worker loses no line.
    for stream in (sys.stdout, sys.stderr):
        cast(TextIOWrapper, stream).reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        setup = cast(GraderSetup, parent.recv())
        _limit_memory(setup.memory_bytes)
        try:
            loop = GradingLoop(pickle.loads(setup.grader), setup)
        except Exception as error:  # noqa: BLE001 - importing a user's module can raise anything
            parent.send(f"{type(error).__name__}: {error}")
            return
        STEP_LIMITS.append(partial(_begin_step, parent))
        parent.send(STEP_BEGINS)
        process = os.getpid()
        printed_to: Path | None = None
        while True:
            output, items = cast("tuple[Path | None, list[Item]]", parent.recv())
            if output is not None and output != printed_to:
                _redirect_output(output)
                printed_to = output
            parent.send(STEP_BEGINS)
            for item in items:
                verdict = loop.grade(item)
                if os.getpid() != process:  # a child that the grader forked
                    os._exit(0)
                parent.send(verdict)
    except (EOFError, ConnectionError):
        return


def _begin_step(parent: Connection) -> None:
    with suppress(OSError):  # in a child that the grader forked, the connection is closed
        parent.send(STEP_BEGINS)


def _redirect_output(path: Path) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        return  # A folder that is gone must not stop the grading.
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _limit_memory(most_bytes: int | None) -> None:
    """Make allocations beyond the limit fail: of data, as libraries reserve far more addresses."""
    if most_bytes is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = most_bytes if most == resource.RLIM_INFINITY else min(most_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _die_with_parent() -> None:
    """Make Linux end this process with its parent, even while a call into C never returns."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
