"""The queue of items to be graded; workers take chunks of about a tenth of a second of work.

The time per item is measured while chunks are graded. It determines the size of a chunk and the
number of workers: fast graders need one process, and another one starts only if more than `LAG_S`
of work is waiting per running worker, or if no chunk has been taken for that time, as when a text
hangs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from germline.errors import GermlineError

PIECE_S = 0.1
"""Target time of a chunk, in seconds: long compared with its round trip, but short enough for an
even distribution at the end."""

LAG_S = 0.25
"""Seconds of waiting work from which on another worker is started."""

LARGEST = 128
"""Largest number of items in a chunk: enough to hide the round trip with the fastest grader."""

LARGEST_GUESS = 16
"""Largest number of items in the second chunk: the time of the first item may include imports."""


Item = TypeVar("Item")
Result = TypeVar("Result")


class ResultCollector(Generic[Result]):
    """Collects a number of results in any order; thread-safe."""

    def __init__(self, size: int) -> None:
        self.future: Future[list[Result]] = Future()
        """Holds the results in order; canceling it ends the wait for them."""
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


@dataclass(frozen=True)
class WorkItem(Generic[Result, Item]):
    """A chunk of items of one job, and the index of its first item in the job."""

    job: ResultCollector[Result]
    start: int
    items: Sequence[Item]


class WorkQueue(Generic[Result, Item]):
    """Items in order of arrival, taken by the workers 0, 1, 2, ...; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: deque[WorkItem[Result, Item]] = deque()
        self._pending: set[ResultCollector[Result]] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._workers = 1
        self._moved = clock()
        self._measured = 0
        self._item_s = 0.0

    def add(self, job: ResultCollector[Result], items: Sequence[Item]) -> None:
        """Append the items of a job."""
        with self._changed:
            if self._closed:
                raise GermlineError("graders: the pool is closed; submit before leaving its `with`")
            self._pending.add(job)
            if items:
                if not self._waiting:
                    self._moved = self._clock()
                self._waiting.append(WorkItem(job, 0, items))
            self._changed.notify_all()
        job.future.add_done_callback(lambda _: self._pending.discard(job))

    def take(self, worker: int) -> WorkItem[Result, Item] | None:
        """Wait for a chunk for this worker; None when the queue is closed."""
        with self._changed:
            while not self._closed:
                piece = self._cut() if worker < self._useful_workers() else None
                if piece is not None:
                    self._workers = max(self._workers, worker + 1)
                    self._moved = self._clock()
                    self._changed.notify_all()  # another worker may be the next one now
                    return piece
                # The next worker checks regularly whether it is needed.
                next_in_line = worker == self._workers and bool(self._waiting)
                self._changed.wait(LAG_S if next_in_line else None)
        return None

    @contextmanager
    def measured(self, items: int) -> Iterator[None]:
        """Measure the time in which a worker grades a number of items."""
        began = self._clock()
        yield
        item_s = (self._clock() - began) / items
        with self._changed:
            # The first measurement is replaced, not averaged: see LARGEST_GUESS.
            trust = 1.0 if self._measured < 2 else 0.5
            self._item_s += trust * (item_s - self._item_s)
            self._measured += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End all workers, drop waiting items, and cancel the jobs that are not finished."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            pending = list(self._pending)
        for job in pending:
            job.future.cancel()

    def _useful_workers(self) -> int:
        waiting = sum(len(piece.items) for piece in self._waiting)
        if not waiting:
            return 0
        lag_s = waiting * self._item_s if self._measured > 1 else 0.0
        # Before the first measurement, the start of the worker takes time and not a text.
        stalled = self._measured > 0 and self._clock() - self._moved > LAG_S
        return max(self._workers + stalled, 1 + int(lag_s / LAG_S))

    def _cut(self) -> WorkItem[Result, Item] | None:
        """Take a chunk of the first job that is still pending."""
        while self._waiting:
            first = self._waiting.popleft()
            if not first.job.is_pending():
                continue
            size = self._size()
            if rest := first.items[size:]:
                self._waiting.appendleft(WorkItem(first.job, first.start + size, rest))
            return WorkItem(first.job, first.start, first.items[:size])
        return None

    def _size(self) -> int:
        if not self._measured:
            return 1
        largest = LARGEST_GUESS if self._measured == 1 else LARGEST
        return max(1, min(largest, int(PIECE_S / max(self._item_s, 1e-9))))
