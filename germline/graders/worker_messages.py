"""What a grader worker and its parent say to each other, as pickles led by their length.

Both ends are our own processes on one machine, joined by two pipes that nothing else can write to.
Beside the pipes they share 16 bytes of memory, `SharedProgress`: the item being graded and since
when. It costs a memory write per item, not a message, and survives the death of the worker, so the
parent always knows which text hangs or kills.
"""

import mmap
import os
import pickle
import select
import struct
import time
from dataclasses import dataclass
from typing import BinaryIO, cast

from germline.types import Example

Item = tuple[str, Example]
"""A completion's text and the example it answers."""


@dataclass(frozen=True)
class GraderSetup:
    """The first frame: what to grade with.

    Attributes:
        grader: a pickle inside the pickle, so that a grader that cannot be loaded is reported.
        parts: names the grader must return, in the order of the values sent back.
        memory_bytes: most memory of the worker; None sets no limit.
    """

    grader: bytes
    parts: tuple[str, ...]
    timeout_s: float
    memory_bytes: int | None = None


@dataclass(frozen=True)
class WorkerReady:
    """The worker has loaded the grader; or has not, for a reason."""

    refusal: str | None = None


@dataclass(frozen=True)
class GradingFailed:
    """The text made the grading fail: it earns the floor."""

    reason: str


@dataclass(frozen=True)
class InvalidGrade:
    """The grader returned what its rubric does not allow: a mistake of the task."""

    problem: str


class InvalidGradeError(Exception):
    """Raised by a grader that finds its task at fault, not the text: it becomes `InvalidGrade`."""


Verdict = tuple[float, ...] | GradingFailed | InvalidGrade
"""The values of the parts in the order of `GraderSetup.parts`, or why there are none."""

_LENGTH = struct.Struct("<Q")
_PROGRESS = struct.Struct("dq")


class SharedProgress:
    """Which item is in work and since when, in memory that both processes see."""

    SIZE = _PROGRESS.size

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self.SIZE)

    def mark(self, index: int) -> None:
        """Note that an item is taken up now; -1 is none."""
        _PROGRESS.pack_into(self._memory, 0, time.monotonic(), index)

    def read(self) -> tuple[int, float]:
        """Return the index of the item in work and when it was taken up."""
        started, index = _PROGRESS.unpack_from(self._memory, 0)
        return index, started

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


def write_frame(pipe: BinaryIO, value: object) -> None:
    """Send one value."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(body)))
    pipe.write(body)
    pipe.flush()


def read_frame(pipe: BinaryIO) -> object:
    """Wait for one value.

    Raises:
        EOFError: the other side is gone.
    """
    head = pipe.read(_LENGTH.size)
    body = pipe.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else b""
    if not body:
        raise EOFError
    return pickle.loads(body)


class FrameReader:
    """Reads values from a pipe without waiting for longer than one is ready to."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN | select.POLLHUP)

    def read(self, timeout_s: float) -> object | None:
        """Return the next value, or None when none came in time.

        Raises:
            EOFError: the other side is gone and everything it sent has been read.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            body = self._complete()
            if body is not None:
                return cast(object, pickle.loads(body))
            left = deadline - time.monotonic()
            if not self._poll.poll(max(0.0, left * 1000)):
                return None
            read = os.read(self._pipe.fileno(), 1 << 20)
            if not read:
                raise EOFError
            self._buffer += read

    def _complete(self) -> bytes | None:
        start = _LENGTH.size
        if len(self._buffer) < start:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if len(self._buffer) < start + length:
            return None
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return body
