"""The messages between a grader worker and its parent process.

A pair of sockets that no other process can write to connects them. The worker sends each verdict
when it has it, in the order of the items, so the parent always knows which text hangs or kills the
worker.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from germline.example import Ended, EpisodeBatch, Example, Grade, Transcript

Item = tuple[str | Transcript | EpisodeBatch, Example]
"""A completion's text, or an episode so far, and the example it answers; or several episodes to
play, and the example of the first one."""


@dataclass(frozen=True)
class GraderSetup:
    """The first message to a worker: the grader and its limits.

    Attributes:
        grader: a pickle inside the pickle, so that a grader that cannot be loaded is reported.
        rubric: weights of the parts that the grader must return.
        floor: the parts of a completion whose grading failed.
        timeout_s: longest time for one completion.
        memory_bytes: None sets no limit.
        variables: names of environment variables that the worker gets beside the usual ones.
    """

    grader: bytes
    rubric: Mapping[str, float]
    floor: Mapping[str, float]
    timeout_s: float
    memory_bytes: int | None = None
    variables: tuple[str, ...] = ()

    def grade(self, values: Mapping[str, float], failure: str | None = None) -> Grade:
        """Return the grade of these parts, with the floors of those that are missing."""
        parts = {name: values.get(name, floor) for name, floor in self.floor.items()}
        reward = sum(map(float.__mul__, self.rubric.values(), parts.values()), 0.0)
        return Grade(reward, parts, failure)

    def missing(self, reason: str) -> Grade:
        """Return the grade where there is none, for a reason that the text did not cause."""
        return Grade(math.nan, dict.fromkeys(self.rubric, math.nan), reason)


class InvalidGradeError(Exception):
    """Raised by a grader when its task is at fault and not the text: an error of the run."""


class GradeMissingError(Exception):
    """Raised by a grader that cannot grade, not because of the text; the reward is NaN."""


class PartsFailedError(Exception):
    """Raised by a grader that could compute only some of its parts; the others earn their floors.

    Args:
        values: of the parts that were computed, by name.
        reason: what failed in the others.
    """

    def __init__(self, values: Mapping[str, float], reason: str) -> None:
        super().__init__(reason)
        self.values = values


CAUSED_BY_CODE = (Exception, SystemExit, asyncio.CancelledError)
"""What the code of a task raises when it fails. A coroutine that waits for one that was cancelled
raises `CancelledError`, which is no `Exception`."""


@dataclass(frozen=True)
class EpisodesGraded:
    """The verdict on each episode of a batch, and why it ended."""

    verdicts: tuple["Verdict", ...]
    ended: tuple[Ended, ...]


Verdict = Grade | InvalidGradeError | EpisodesGraded


def as_number(value: Any) -> float:
    """Convert a value to a float, scalars of numpy and torch included; anything else is NaN."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


class PlayedEpisode(NamedTuple):
    """What a grader returns for an episode of a batch, and why the episode ended."""

    result: Callable[[], Mapping[str, float]]
    """Returns the parts of the rubric, or raises what a grader raises."""
    ended: Ended


STEP_BEGINS = ""
"""The message of a worker that its next step begins now and has the whole time: the loading of the
grader has ended, a batch begins, or an item goes on with its next step."""


class TimeUp(BaseException):
    """The time limit of an item has passed. Not an `Exception`, so most graders do not catch it."""


STEP_LIMITS: list[Callable[[], None]] = []
"""What restarts each time limit of the item that is being graded: the alarm of the worker, and the
watch of its parent. One list, because there is one alarm. Outside a worker, nothing is limited."""


def restart_step() -> None:
    """Give the next step of an item the whole time.

    Grading an item takes several steps where an environment is made again and given all replies of
    its episode; each of them has the time of an item.
    """
    for restart in STEP_LIMITS:
        restart()
