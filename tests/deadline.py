"""Waiting for what another process does: the limit only ends a test that would never end."""

import time
from collections.abc import Callable

DEADLINE_S = 600.0
"""So long that no machine is too busy for it; what is waited for usually takes a second."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {DEADLINE_S:g} s"
        time.sleep(0.02)
