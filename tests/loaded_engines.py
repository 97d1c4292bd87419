"""What engine processes load and do in tests: functions of a module, found there by name.

Light to import, as every process imports it: what is heavy is imported by who needs it.
"""

import os
import time

from germline.protocols import Engine
from germline.types import GermlineError


def toy() -> Engine:
    """Load the toy engine that `tests.remote_engines` has here."""
    from germline.run.build_parts import make_engine
    from tests.remote_engines import CONFIG

    return make_engine(CONFIG)


def talkative() -> Engine:
    """Load it with words that nobody asked for."""
    os.write(1, b"engine says hello\n")
    os.write(2, b"and writes to standard error\n")
    return toy()


def refused() -> Engine:
    """Fail to load, in words for a user."""
    raise GermlineError("model: 'nowhere' has no config.json")


def broken() -> Engine:
    """Fail to load with a mistake in the code."""
    raise ZeroDivisionError("of a module")


class Sleep:
    """A job that never ends, such as a computation that hangs."""

    def __call__(self, _engine: Engine) -> None:
        """Sleep."""
        time.sleep(1000)


class Divide:
    """A job with a mistake in it."""

    def __call__(self, _engine: Engine) -> float:
        """Raise ZeroDivisionError."""
        return 1 / 0


class Refuse:
    """A job that a user can mend."""

    def __call__(self, _engine: Engine) -> None:
        """Raise GermlineError."""
        raise GermlineError("task: the longest prompt is too long")


class Whereabouts:
    """A job that says in which process it is done."""

    def __call__(self, _engine: Engine) -> int:
        """Return the process id."""
        return os.getpid()
