"""The time limit of one step of an episode, where grading an item takes several steps.

An environment that is made again is given all replies of its episode in one item; each of them has
the time of one item. The worker registers its limits here; outside a worker, nothing is limited.
"""

from collections.abc import Callable


class TimeUp(BaseException):
    """The time limit of an item has passed. Not an `Exception`, so most graders do not catch it."""


class StepClock:
    """Restarts the time limits of the item that is being graded.

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
