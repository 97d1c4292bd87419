"""Grades in the process that trains, for reward functions that no worker process can import.

A lambda, a function inside another function, and a function of a script or notebook exist in their
own process only. They are called there, one completion at a time, in the thread that asks. A text
that takes too long is stopped by an alarm, as in a worker; Python sets alarms in the main thread
only, so in another thread there is no time limit.

Known limits: no memory limit; a crash of the function is a crash of the training; generation waits
for the grading; one long call into C is not interrupted.
"""

import contextlib
import logging
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

from germline.example import Transcript
from germline.graders.pool import GraderPool, qualified_name
from germline.graders.reward_functions import RewardFunction
from germline.graders.worker_process import GradingLoop
from germline.protocols import EpisodeGrader, Grader
from germline.types import Example, GermlineError, Grade

log = logging.getLogger(__name__)


def can_be_imported(grader: Grader | EpisodeGrader) -> bool:
    """Whether a worker process can load a grader: it can be pickled, without the running script."""
    try:
        return b"__main__" not in pickle.dumps(grader)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False


def warn_of_local_functions(functions: Mapping[str, RewardFunction]) -> None:
    """Warn that reward functions run in this process, and name those that no worker can import."""
    local = [name for name, function in functions.items() if not can_be_imported(function)]
    run = "it runs" if len(functions) == 1 else f"all reward functions ({', '.join(functions)}) run"
    _warn_once(", ".join(local), run, tuple(map(qualified_name, functions.values())))


@cache
def _warn_once(local: str, run: str, _functions: tuple[str, ...]) -> None:
    """Warn once in a process for the same functions: resume and evaluate make graders again."""
    log.warning(
        "reward: %s cannot be imported by grader processes (a lambda, a function inside a "
        "function, or of a script or notebook), so %s in this process: graders.timeout_s holds in "
        "the main thread only, graders.workers and graders.memory_gb do not act. Put %s into a "
        "module to have them",
        *(local, run, local),
    )


class InProcessPool(GraderPool):
    """Grades at once, when completions are submitted.

    Args:
        grader: (text, example) -> parts.
        rubric: part -> weight.
        floor: the parts of a completion whose grading failed.
        timeout_s: longest wall time for one completion.
        max_turns: limit of the model's turns in an episode; None: single completions.
    """

    def __init__(
        self,
        grader: Grader | EpisodeGrader,
        rubric: Mapping[str, float],
        floor: Mapping[str, float],
        timeout_s: float,
        max_turns: int | None = None,
    ) -> None:
        super().__init__(grader, rubric, floor, workers=0, timeout_s=timeout_s, max_turns=max_turns)
        self._grader = grader

    def submit(
        self, texts: Sequence[str | Transcript], examples: Sequence[Example]
    ) -> Future[list[Grade]]:
        """Grade completions; text i answers example i. The returned future is done."""
        timed = threading.current_thread() is threading.main_thread()
        loop = GradingLoop(self._grader, self._setup, timed=timed)
        future: Future[list[Grade]] = Future()
        try:
            with _borrowed_alarm() if timed else contextlib.nullcontext():
                items = self._items(texts, examples)
                grades = [self._read(loop.grade(item), item) for item in items]
        except GermlineError as error:
            future.set_exception(error)
        else:
            future.set_result(grades)
        return future

    def redirect_output(self, path: Path) -> None:
        """Leave what the functions print where the program prints."""


@contextlib.contextmanager
def _borrowed_alarm() -> Iterator[None]:
    """Give the alarm of this process back as it was: handler, and the time that is left."""
    handler = signal.getsignal(signal.SIGALRM)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        if left:
            rest = max(1e-3, left - (time.monotonic() - started))
            signal.setitimer(signal.ITIMER_REAL, rest, interval)
