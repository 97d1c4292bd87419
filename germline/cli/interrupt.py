"""Ctrl-C: the first finishes the generation at hand, the second stops at once.

SIGTERM, which schedulers of clusters send before they kill, does the same as the first Ctrl-C.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit status of a command ended by Ctrl-C, as shells expect: 128 + SIGINT."""


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM, raise KeyboardInterrupt at the next SIGINT.

    Python lets only the main thread set signal handlers; elsewhere Ctrl-C keeps its usual meaning.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = {one: signal.signal(one, handle) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
