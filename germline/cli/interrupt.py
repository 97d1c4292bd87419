"""Ctrl-C: the first one finishes the current generation, the second one stops at once.

SIGTERM, which cluster schedulers send before they kill a process, has the same effect as the first
Ctrl-C.
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

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
