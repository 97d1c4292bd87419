"""Items of many callers, processed in batches by a few threads.

While all threads are busy, items gather, so batches fill up exactly when there is a backlog, and an
item that arrives at an idle queue is processed at once.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar

AnyItem = TypeVar("AnyItem")
Result = TypeVar("Result")


class ResultCollector(Generic[Result]):
    """Collects a number of results in any order; thread-safe."""

    def __init__(self, size: int) -> None:
        self.future: Future[list[Result]] = Future()
        """Holds the results in order; canceling it ends the wait for them."""
        self.since = time.monotonic()
        self._results: dict[int, Result] = {}
        self._size = size
        self._lock = threading.Lock()
        if not size:
            self.future.set_result([])

    def finish(self, place: int, result: Result) -> None:
        """Take one of the results."""
        with self._lock:
            self._results[place] = result
            if len(self._results) < self._size:
                return
        # A future that has been canceled keeps its state.
        with suppress(InvalidStateError):
            self.future.set_result([self._results[place] for place in range(self._size)])

    def fail(self, error: BaseException) -> None:
        """Let the future raise an error, because an item cannot be processed."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class BatchQueue(Generic[AnyItem, Result]):
    """Processes items in batches, in order of arrival.

    Args:
        workers: one function per thread: a batch -> one result per item; an error fails every call
            that has an item in the batch.
        batch_size: most items per batch.
        name: of the threads, which are started with the first items.
        lag_s: if not 0, a thread begins to take part when an item has waited for so long; and
            batches become smaller towards the end of what waits, so that threads end at about the
            same time.
    """

    def __init__(
        self,
        workers: Sequence[Callable[[list[AnyItem]], Sequence[Result]]],
        batch_size: int,
        name: str,
        lag_s: float = 0.0,
    ) -> None:
        self._batch_size = batch_size
        self._lag_s = lag_s
        self._waiting: deque[tuple[ResultCollector[Result], int, AnyItem]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._active = 1 if lag_s else len(workers)  # threads that take part
        # Before the first batch is processed, the start of a process takes time and not an item.
        self._joined_at = math.inf
        self._threads = [
            threading.Thread(
                target=self._serve, args=(number, process), name=f"{name}-{number}", daemon=True
            )
            for number, process in enumerate(workers)
        ]

    def submit(self, items: Sequence[AnyItem]) -> "Future[list[Result]]":
        """Process items in the background; the future holds their results in order."""
        call = ResultCollector[Result](len(items))
        with self._changed:
            if self._closed:
                call.future.cancel()
                return call.future
            self._waiting.extend((call, place, item) for place, item in enumerate(items))
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
            self._changed.notify_all()
        return call.future

    def close(self) -> None:
        """Cancel what waits; batches that are being processed end by themselves."""
        with self._changed:
            self._closed = True
            for call, _, _ in self._waiting:
                call.future.cancel()
            self._waiting.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the batches that are being processed."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _serve(self, number: int, process: Callable[[list[AnyItem]], Sequence[Result]]) -> None:
        while batch := self._take(number):
            try:
                results = process([item for _, _, item in batch])
                done = list(zip(batch, results, strict=True))
            except BaseException as error:  # noqa: BLE001 - any error must reach the caller that waits
                for call, _, _ in batch:
                    call.fail(error)
            else:
                for (call, place, _), result in done:
                    call.finish(place, result)
            self._joined_at = min(self._joined_at, time.monotonic())

    def _take(self, number: int) -> list[tuple[ResultCollector[Result], int, AnyItem]]:
        """Wait for a batch; an empty one means that the queue is closed."""
        with self._changed:
            while not self._closed:
                if self._takes_part(number) and (batch := self._next_batch()):
                    return batch
                is_next = number == self._active and bool(self._waiting)
                self._changed.wait(self._lag_s if is_next else None)
            return []

    def _takes_part(self, number: int) -> bool:
        if number == self._active and self._waiting:
            now, (first, *_) = time.monotonic(), self._waiting[0]
            if now - max(first.since, self._joined_at) > self._lag_s:
                self._active, self._joined_at = number + 1, now
                self._changed.notify_all()  # another thread is the next one now
        return number < self._active

    def _next_batch(self) -> list[tuple[ResultCollector[Result], int, AnyItem]]:
        size = self._batch_size
        if self._lag_s:
            size = min(size, -(-len(self._waiting) // (2 * len(self._threads))))
        batch: list[tuple[ResultCollector[Result], int, AnyItem]] = []
        while self._waiting and len(batch) < size:
            entry = self._waiting.popleft()
            if not entry[0].future.done():
                batch.append(entry)
        return batch
