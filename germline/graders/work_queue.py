"""What waits to be graded, handed to workers in pieces of about a tenth of a second.

How long one item takes is measured as pieces are done. It decides how large a piece is, and how
many workers are worth having: quick graders need one process, and the second and later ones start
only while more than `LAG_S` of work waits for each of those there are, or while nobody has taken
anything for so long, as when a text hangs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

PIECE_S = 0.1
"""How long a piece should take: much longer than its round trip, and shared well at the end."""

LAG_S = 0.25
"""How much work must wait to make another worker worth its start."""

LARGEST = 128
"""Items of a piece of the quickest grader: enough to hide the round trip."""

LARGEST_GUESS = 16
"""Items of the second piece: the first item may have paid for an import or a cache."""


@runtime_checkable
class GradingJob(Protocol):
    """Whose items are graded."""

    def wanted(self) -> bool:
        """Tell whether anybody still waits for it."""


AnyJob = TypeVar("AnyJob", bound=GradingJob)
Item = TypeVar("Item")


@dataclass(frozen=True)
class WorkItem(Generic[AnyJob, Item]):
    """Some items of one job, and the place of the first in it."""

    job: AnyJob
    start: int
    items: Sequence[Item]


class WorkQueue(Generic[AnyJob, Item]):
    """Items in the order they came, taken by the workers 0, 1, 2, ...; safe between threads."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: deque[WorkItem[AnyJob, Item]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._workers = 1
        self._moved = clock()
        self._measured = 0
        self._item_s = 0.0

    def add(self, job: AnyJob, items: Sequence[Item]) -> None:
        """Put the items of a job at the end."""
        with self._changed:
            if items:
                if not self._waiting:
                    self._moved = self._clock()
                self._waiting.append(WorkItem(job, 0, items))
            self._changed.notify_all()

    def take(self, worker: int) -> WorkItem[AnyJob, Item] | None:
        """Wait for a piece that is this worker's to grade; None when the backlog is closed."""
        with self._changed:
            while not self._closed:
                piece = self._cut() if worker < self._useful_workers() else None
                if piece is not None:
                    self._workers = max(self._workers, worker + 1)
                    self._moved = self._clock()
                    self._changed.notify_all()  # another one may be next in line now
                    return piece
                # The next worker looks now and then whether it is needed.
                next_in_line = worker == self._workers and bool(self._waiting)
                self._changed.wait(LAG_S if next_in_line else None)
        return None

    @contextmanager
    def measured(self, items: int) -> Iterator[None]:
        """Take the time in which a worker grades so many items."""
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
        """Send every worker home; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _useful_workers(self) -> int:
        waiting = sum(len(piece.items) for piece in self._waiting)
        if not waiting:
            return 0
        lag_s = waiting * self._item_s if self._measured > 1 else 0.0
        # Before the first measurement it is the worker's start that takes long, not a text.
        stalled = self._measured > 0 and self._clock() - self._moved > LAG_S
        return max(self._workers + stalled, 1 + int(lag_s / LAG_S))

    def _cut(self) -> WorkItem[AnyJob, Item] | None:
        """Cut a piece off the first job that somebody still waits for."""
        while self._waiting:
            first = self._waiting.popleft()
            if not first.job.wanted():
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
