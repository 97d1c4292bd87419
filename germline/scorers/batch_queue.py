"""Items of many callers, processed in batches by a few threads.

While all threads are busy, items gather, so batches fill up exactly when there is a backlog, and an
item that arrives at an idle queue is processed at once.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from germline.graders.result_collector import ResultCollector

AnyItem = TypeVar("AnyItem")
Result = TypeVar("Result")


class BatchQueue(Generic[AnyItem, Result]):
    """Processes items in batches, in order of arrival.

    Args:
        process: a batch -> one result per item; an error fails every call that has an item in it.
        batch_size: most items per batch.
        threads: most batches at the same time; started when first needed.
        name: of the threads.
    """

    def __init__(
        self,
        process: Callable[[list[AnyItem]], Sequence[Result]],
        batch_size: int,
        threads: int,
        name: str,
    ) -> None:
        self._process = process
        self._batch_size = batch_size
        self._most_threads = threads
        self._name = name
        self._waiting: deque[tuple[ResultCollector[Result], int, AnyItem]] = deque()
        self._open_calls: set[ResultCollector[Result]] = set()
        self._changed = threading.Condition()
        self._idle = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        """Return how many items wait, without those whose caller has canceled."""
        with self._changed:
            return sum(call.is_pending() for call, _, _ in self._waiting)

    def submit(self, items: Sequence[AnyItem]) -> "Future[list[Result]]":
        """Process items in the background; the future holds their results in order."""
        call = ResultCollector[Result](len(items))
        if not items:
            return call.future
        with self._changed:
            if self._closed:
                call.future.cancel()
                return call.future
            self._open_calls.add(call)
            self._waiting.extend((call, place, item) for place, item in enumerate(items))
            self._start_threads()
            self._changed.notify_all()
        call.future.add_done_callback(lambda _: self._open_calls.discard(call))
        return call.future

    def close(self) -> None:
        """Cancel what is not processed yet; batches that are being processed end by themselves."""
        with self._changed:
            self._closed = True
            calls = list(self._open_calls)
            self._waiting.clear()
            self._changed.notify_all()
        for call in calls:
            call.future.cancel()

    def join(self) -> None:
        """Wait for the batches that are being processed."""
        for thread in self._threads:
            thread.join()

    def _start_threads(self) -> None:
        batches = -(-len(self._waiting) // self._batch_size)
        for _ in range(min(batches - self._idle, self._most_threads - len(self._threads))):
            number = len(self._threads)
            thread = threading.Thread(
                target=self._serve, name=f"{self._name}-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while batch := self._take():
            try:
                results = self._process([item for _, _, item in batch])
                done = list(zip(batch, results, strict=True))
            except BaseException as error:  # noqa: BLE001 - any error must reach the caller that waits
                for call, _, _ in batch:
                    call.fail(error)
            else:
                for (call, place, _), result in done:
                    call.finish(place, [result])

    def _take(self) -> list[tuple[ResultCollector[Result], int, AnyItem]]:
        """Wait for a batch; an empty one means that the queue is closed."""
        with self._changed:
            self._idle += 1
            while not self._closed:
                batch: list[tuple[ResultCollector[Result], int, AnyItem]] = []
                while self._waiting and len(batch) < self._batch_size:
                    entry = self._waiting.popleft()
                    if entry[0].is_pending():
                        batch.append(entry)
                if batch:
                    self._idle -= 1
                    return batch
                self._changed.wait()
            return []
