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


def sleep(_engine: Engine) -> None:
    """Never end, as a computation that hangs."""
    time.sleep(1000)


def divide(_engine: Engine) -> float:
    """Make a mistake."""
    return 1 / 0


def refuse(_engine: Engine) -> None:
    """Make a mistake that a user can mend."""
    raise GermlineError("task: the longest prompt is too long")


def process_id(_engine: Engine) -> int:
    """Return in which process it is done."""
    return os.getpid()
