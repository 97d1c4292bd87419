"""The pool of grader workers: it turns completions into grades, for any text a model writes.

Episodes are graded turn by turn: a `Transcript` in the place of a text is answered with the
environment's next message (`Grade.observation`), or with the reward of the episode.

`submit` returns at once; grading runs concurrently with generation, in one thread and one process
per worker. A failure that the text causes (an exception, a timeout, a crash of the process) earns
the task's floor, and the grade names the reason. A mistake of the task (a missing part, NaN) is
raised as an error, because no reward would be right. A reward that is missing for a reason that the
model did not cause (`GradeMissingError`) is NaN.

Why the processes are germline's own and not those of `multiprocessing`: its `spawn` executes the
user's script again and needs a main guard, its `fork` copies the threads of torch mid-step, and
neither can name the text that hangs.

Known limits: POSIX only; the memory limit works on Linux only; the timeout of a text is wall time,
so on an overloaded machine texts can fail that would otherwise be graded in time.
"""

import logging
import math
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from germline.example import EpisodeBatch, Transcript
from germline.graders.batch_queue import BatchQueue
from germline.graders.reward_functions import RewardFunction
from germline.graders.worker_handle import WorkerHandle
from germline.graders.worker_messages import (
    EpisodesGraded,
    GraderSetup,
    InvalidGradeError,
    Item,
    Verdict,
)
from germline.graders.worker_process import GradingLoop
from germline.protocols import EpisodeGrader, Grader
from germline.types import Example, GermlineError, Grade

log = logging.getLogger(__name__)

GB = 10**9

LARGEST_BATCH = 128
"""Most items of a batch: enough to hide the round trip with the fastest grader."""

LAG_S = 0.25
"""Another process starts when a text has waited for so many seconds."""

_WARNED_OF: set[tuple[str, ...]] = set()


class GraderPool:
    """Worker processes that grade completions or episodes; a context manager.

    Unpickling it, in another process, makes a pool of the same arguments.

    Args:
        grader: (text, example) -> parts, or that of episodes; a function of a module or a picklable
            object.
        rubric: part -> weight; the reward is the weighted sum. Weight 0 marks a metric.
        floor: the parts of a completion whose grading failed.
        workers: maximum number of processes; all but the first start only while grading is slower
            than generation. None are for a subclass that grades elsewhere.
        timeout_s: longest wall time for one completion or turn, without the start of the process
            and its imports.
        memory_gb: memory limit of a process, in GB; None sets no limit.
        max_turns: limit of the model's turns in an episode; None: single completions.
        variables: names of environment variables that the processes get beside the usual ones.
    """

    def __init__(  # noqa: PLR0913 - what a process of graders needs
        self,
        grader: Grader | EpisodeGrader,
        rubric: Mapping[str, float],
        floor: Mapping[str, float],
        workers: int = 1,
        timeout_s: float = 2.0,
        memory_gb: float | None = None,
        max_turns: int | None = None,
        variables: tuple[str, ...] = (),
    ) -> None:
        self._arguments = {name: given for name, given in locals().items() if name != "self"}
        self.max_turns = max_turns
        if set(floor) != set(rubric):
            raise GermlineError(
                f"graders: the floor must give the parts {sorted(rubric)}, found {sorted(floor)}"
            )
        floor = {part: float(floor[part]) for part in rubric}
        self._name = _name(grader)
        memory_bytes = None if memory_gb is None else int(memory_gb * GB)
        weights = {part: float(weight) for part, weight in rubric.items()}
        self._setup = GraderSetup(b"", weights, floor, timeout_s, memory_bytes, variables)
        if workers:
            self._setup = self.worker_setup(grader)
        self._output: Path | None = None
        self._is_closed = False
        self._children = [WorkerHandle(self._setup, self._name) for _ in range(workers)]
        self._queue: BatchQueue[Item | None, Grade] = BatchQueue(
            [partial(self._grade, child) for child in self._children],
            *(LARGEST_BATCH, "grader", LAG_S),
        )
        if workers:
            self._queue.submit([None])  # starts a process before the first text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments."""
        return partial(type(self), **self._arguments), ()

    def __enter__(self) -> "GraderPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def worker_setup(self, grader: Grader | EpisodeGrader) -> GraderSetup:
        """Return the first message to a worker process."""
        return replace(self._setup, grader=_pickled(grader))

    def submit(
        self, texts: Sequence[str | Transcript], examples: Sequence[Example]
    ) -> Future[list[Grade]]:
        """Grade completions or continue episodes in the background; text i answers example i.

        The future raises GermlineError when the grader violates its rubric, an environment fails
        before the first reply of the model, no worker can start, or the pool is closed.
        """
        if self._is_closed:
            closed: Future[list[Grade]] = Future()
            closed.set_exception(GermlineError("graders: this pool is closed: make another one"))
            return closed
        return self._queue.submit(self._items(texts, examples))

    def _items(self, texts: Sequence[str | Transcript], examples: Sequence[Example]) -> list[Item]:
        """Pair texts with examples; where episodes are graded, a text is the only reply of one."""
        if self.max_turns is not None:
            texts = [
                one if isinstance(one, Transcript) else Transcript((one,), seed=0, is_final=True)
                for one in texts
            ]
        return list(zip(texts, examples, strict=True))

    def redirect_output(self, path: Path) -> None:
        """Append what the grader prints from now on to a file instead of standard error.

        The file is removed when the pool closes and nothing was printed.
        """
        self._output = path
        for child in self._children:
            child.output = path

    def close(self) -> None:
        """Cancel what waits and end the workers at once; what they grade fails."""
        self._is_closed = True
        self._queue.close()
        for child in self._children:
            child.stop()
        self._queue.join()
        for child in self._children:
            child.close()
        if self._output is not None and self._output.is_file() and not self._output.stat().st_size:
            self._output.unlink()

    def _grade(self, child: WorkerHandle, asked: Sequence[Item | None]) -> list[Grade]:
        """Grade a batch with one worker, in that worker's thread; None only starts the worker."""
        if None in asked:
            child.start()
        items = [item for item in asked if item is not None]
        grades = map(self._read, child.grade(items), items)
        return [Grade(math.nan, {}) if item is None else next(grades) for item in asked]

    def _read(self, verdict: Verdict, item: Item) -> Grade:
        """Return a grade; raise what no text of the model can have caused."""
        asked, example = item
        assert not isinstance(verdict, EpisodesGraded), "batches are read by their own pool"
        if isinstance(verdict, InvalidGradeError):
            raise GermlineError(
                f"graders: {self._name} {verdict} (example {example.index}, {_seen(asked)})"
            )
        has_floor = verdict.failure is not None and not math.isnan(verdict.reward)
        if has_floor and isinstance(asked, Transcript) and not asked.replies:
            raise GermlineError(
                f"graders: {self._name} fails before the model's first reply: {verdict.failure} "
                f"(example {example.index}, environment seed {asked.seed}): correct the "
                "environment, or raise graders.timeout_s or graders.memory_gb"
            )
        return verdict


def _seen(asked: str | Transcript | EpisodeBatch) -> str:
    if isinstance(asked, str):
        return f"text {asked[:80]!r}"
    if isinstance(asked, EpisodeBatch):
        return f"played by {asked.episodes[0].model} over HTTP"
    last = f"last reply {asked.replies[-1][:80]!r}" if asked.replies else "before the first reply"
    return f"environment seed {asked.seed}, {last}"


def _name(grader: Grader | EpisodeGrader) -> str:
    return str(getattr(grader, "described", None) or qualified_name(grader))


def qualified_name(function: Callable[..., object]) -> str:
    """Name a function, or the class of an object, with its module."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{getattr(named, '__qualname__', '?')}"


def _pickled(grader: Grader | EpisodeGrader) -> bytes:
    name = _name(grader)
    try:
        if name.startswith("__main__."):
            raise pickle.PicklingError("it is defined in the script that is running")
        return pickle.dumps(grader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise GermlineError(
            f"graders: {name} cannot be imported by a worker process ({error}): move the grader "
            "to a module, as a function or a small frozen dataclass"
        ) from error


def can_be_imported(grader: Grader | EpisodeGrader) -> bool:
    """Whether a worker process can load a grader: it can be pickled, without the running script."""
    try:
        return b"__main__" not in _pickled(grader)
    except GermlineError:
        return False


def warn_of_local_functions(functions: Mapping[str, RewardFunction]) -> None:
    """Warn that reward functions run in this process, and name those that no worker can import.

    Resume and evaluate make graders again: the same functions are named once in a process.
    """
    named = tuple(map(qualified_name, functions.values()))
    if named not in _WARNED_OF:
        _WARNED_OF.add(named)
        log.warning(
            "reward: %s cannot be imported by grader processes (a lambda, a function inside a "
            "function, or of a script or notebook), so all reward functions run in this process: "
            "graders.timeout_s holds in the main thread only, graders.workers and "
            "graders.memory_gb do not act. A function of a module has them",
            ", ".join(name for name, one in functions.items() if not can_be_imported(one)),
        )


class InProcessPool(GraderPool):
    """Grades in the process that trains, for reward functions that no worker process can import.

    These are lambdas, functions inside another one, and those of a script or notebook. They are
    called one completion at a time, in the thread that asks. An alarm (`SIGALRM`) stops a text that
    takes too long; Python sets alarms in the main thread only, so another has no time limit.

    Known limits: no memory limit; a crash of the function is a crash of the training; generation
    waits for the grading; one long call into C is not interrupted.
    """

    def __init__(
        self,
        grader: Grader | EpisodeGrader,
        rubric: Mapping[str, float],
        floor: Mapping[str, float],
        timeout_s: float,
        max_turns: int | None = None,
    ) -> None:
        super().__init__(grader, rubric, floor, 0, timeout_s, max_turns=max_turns)
        self._grader = grader

    def submit(
        self, texts: Sequence[str | Transcript], examples: Sequence[Example]
    ) -> Future[list[Grade]]:
        """Grade completions; text i answers example i. The returned future is done."""
        timed = threading.current_thread() is threading.main_thread()
        loop = GradingLoop(self._grader, self._setup, timed=timed)
        future: Future[list[Grade]] = Future()
        try:
            items = self._items(texts, examples)
            grades = [self._read(loop.grade(item), item) for item in items]
        except GermlineError as error:
            future.set_exception(error)
        else:
            future.set_result(grades)
        return future

    def redirect_output(self, path: Path) -> None:
        """Leave what the functions print where the program prints."""
