"""The messages between a grader worker and its parent process.

Two pipes that no other process can write to connect them. They also share 16 bytes of memory,
`SharedProgress`: the index of the item being graded and the time at which its grading began. An
update costs one memory write per item instead of a message, and it survives the death of the
worker, so the parent always knows which text hangs or kills the worker.
"""

import asyncio
import mmap
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from germline.example import Ended, EpisodeBatch, Example, Transcript

Item = tuple[str | Transcript | EpisodeBatch, Example]
"""A completion's text, or an episode so far, and the example it answers; or several episodes to
play, and the example of the first one."""


@dataclass(frozen=True)
class GraderSetup:
    """The first message to a worker: the grader and its limits.

    Attributes:
        grader: a pickle inside the pickle, so that a grader that cannot be loaded is reported.
        parts: names the grader must return, in the order of the values sent back.
        timeout_s: longest time for one completion, in seconds.
        memory_bytes: memory limit of the worker, in bytes; None sets no limit.
        variables: names of environment variables that the worker gets beside the usual ones.
    """

    grader: bytes
    parts: tuple[str, ...]
    timeout_s: float
    memory_bytes: int | None = None
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class RedirectOutput:
    """Asks the worker to append what graders print from now on to a file."""

    path: Path


@dataclass(frozen=True)
class WorkerReady:
    """The worker has loaded the grader, or `refusal` says why it could not."""

    refusal: str | None = None


@dataclass(frozen=True)
class GradingFailed:
    """The text made the grading fail, as a whole or in some parts.

    Attributes:
        reason: what failed.
        values: of the parts in the order of `GraderSetup.parts`; None for a part that failed, which
            earns its floor. Empty when every part failed.
    """

    reason: str
    values: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class InvalidGrade:
    """The grader returned a value that its rubric does not allow: a mistake of the task."""

    problem: str


@dataclass(frozen=True)
class EpisodeContinues:
    """The environment's next message to the model, in the place of the parts of the rubric."""

    observation: str


@dataclass(frozen=True)
class GradeMissing:
    """There is no grade, for a reason that the model did not cause; the reward is NaN."""

    reason: str


@dataclass(frozen=True)
class EpisodesGraded:
    """The verdict on each episode of a batch, and why it ended."""

    verdicts: tuple["Verdict", ...]
    ended: tuple[Ended, ...]


class InvalidGradeError(Exception):
    """Raised by a grader when its task is at fault and not the text; becomes `InvalidGrade`."""


class GradeMissingError(Exception):
    """Raised by a grader that cannot grade, not because of the text; becomes `GradeMissing`."""


CAUSED_BY_CODE = (Exception, SystemExit, asyncio.CancelledError)
"""What the code of a task raises when it fails. A coroutine that waits for one that was cancelled
raises `CancelledError`, which is no `Exception`."""


class PartsFailedError(Exception):
    """Raised by a grader that could compute only some of its parts; becomes `GradingFailed`.

    Args:
        values: of the parts that were computed, by name.
        reason: what failed in the others.
    """

    def __init__(self, values: Mapping[str, float], reason: str) -> None:
        super().__init__(reason)
        self.values = values


Verdict = (
    tuple[float, ...]
    | EpisodeContinues
    | EpisodesGraded
    | GradingFailed
    | GradeMissing
    | InvalidGrade
)
"""The values of the parts in the order of `GraderSetup.parts`, or why some are missing."""


class PlayedEpisode(NamedTuple):
    """What a grader returns for an episode of a batch.

    Attributes:
        result: returns the parts of the rubric, or raises what a grader raises.
        ended: why the episode ended.
    """

    result: Callable[[], Mapping[str, float]]
    ended: Ended


_PROGRESS = struct.Struct("dq")


class SharedProgress:
    """Which item is being graded and since when, in memory that both processes share."""

    SIZE = _PROGRESS.size

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self.SIZE)
        self._index = -1

    def mark(self, index: int) -> None:
        """Record that the grading of an item begins now; -1 means that no item is being graded."""
        self._index = index
        _PROGRESS.pack_into(self._memory, 0, time.monotonic(), index)

    def restart(self) -> None:
        """Record that another step of the item begins now, which has the time of an item."""
        self.mark(self._index)

    def read(self) -> tuple[int, float]:
        """Return the index of the item being graded and the time at which its grading began."""
        started, index = _PROGRESS.unpack_from(self._memory, 0)
        return index, started

    def close(self) -> None:
        """Release the shared memory."""
        self._memory.close()


class TimeUp(BaseException):
    """The time limit of an item has passed. Not an `Exception`, so most graders do not catch it."""


class StepClock:
    """Restarts the time limits of the item that is being graded.

    Grading an item takes several steps where an environment is made again and given all replies of
    its episode; each of them has the time of an item. The worker registers its limits here; outside
    a worker, nothing is limited.

    Attributes:
        limits: what restarts each limit: the alarm of the worker, and the watch of its parent.
    """

    def __init__(self) -> None:
        self.limits: list[Callable[[], None]] = []

    def restart(self) -> None:
        """Give the next step the whole time."""
        for restart in self.limits:
            restart()


STEP_CLOCK = StepClock()
"""The clock of this process; there is one, because there is one alarm."""
