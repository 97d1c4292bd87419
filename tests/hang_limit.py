"""When a wait of a test is over: no test passes or fails by how fast or how busy the machine is."""

import time
from collections.abc import Callable

HANG_S = 900.0
"""Seconds after which something that has not happened will never happen."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {HANG_S:g} s"
        time.sleep(0.02)
