"""The results of one call that is processed in parts: a future of all of them, in order."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")


class ResultCollector(Generic[Result]):
    """Collects results in any order; thread-safe.

    Args:
        size: number of results.

    Attributes:
        future: holds the results in order; canceling it ends the wait for them.
    """

    def __init__(self, size: int) -> None:
        self.future: Future[list[Result]] = Future()
        self._parts: dict[int, Sequence[Result]] = {}
        self._missing = size
        self._lock = threading.Lock()
        if not size:
            self.future.set_result([])

    def is_pending(self) -> bool:
        """Return whether a caller still waits for the results."""
        return not self.future.done()

    def finish(self, start: int, results: Sequence[Result]) -> None:
        """Take the results of a part, the first of which is at index `start`."""
        with self._lock:
            self._parts[start] = results
            self._missing -= len(results)
            if self._missing:
                return
        in_order = [result for _, part in sorted(self._parts.items()) for result in part]
        # A future that has been canceled keeps its state.
        with suppress(InvalidStateError):
            self.future.set_result(in_order)

    def fail(self, error: BaseException) -> None:
        """Let the future raise an error, because a part cannot be processed."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
