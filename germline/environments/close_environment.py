"""Close an environment: a `close()` that hangs or fails costs no episode its score.

It has the time of a step, and is given up then. The log says so once for every class of a process,
and for every type of exception; that of a grader process is in the run's `graders.log`.
"""

import logging

from germline.environments.adapters import StepAdapter
from germline.graders.reward_functions import exception_text
from germline.graders.step_clock import STEP_CLOCK, TimeUp
from germline.graders.worker_messages import CAUSED_BY_CODE

log = logging.getLogger(__name__)

_SAID: set[tuple[str, str]] = set()
"""(class, what happened) that the log has."""


def close_environment(adapter: StepAdapter) -> None:
    """Release what an environment holds, in the time of a step."""
    STEP_CLOCK.restart()
    try:
        adapter.close()
    except TimeUp:
        problem = "takes longer than graders.timeout_s and is given up"
        _say_once(adapter, "TimeUp", problem)
        STEP_CLOCK.restart()  # what follows has a time limit too
    except CAUSED_BY_CODE as error:
        close = getattr(type(adapter.environment), "close", None)
        _say_once(adapter, type(error).__name__, f"fails: {exception_text(close, error)}")


def _say_once(adapter: StepAdapter, kind: str, problem: str) -> None:
    name = type(adapter.environment).__qualname__
    if (name, kind) not in _SAID:
        _SAID.add((name, kind))
        log.warning(
            "the environment %s: close() %s; the score of the episode stands, and this is said "
            "once: correct close(), because what it does not release stays in the grader process",
            *(name, problem),
        )
