"""Items of many callers, processed in batches by a few threads.

While all threads are busy, items gather, so batches fill up exactly when there is a backlog, and an
item that arrives at an idle queue is processed at once.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from germline.graders.work_queue import ResultCollector

AnyItem = TypeVar("AnyItem")
Result = TypeVar("Result")


class BatchQueue(Generic[AnyItem, Result]):
    """Processes items in batches, in order of arrival.

    Args:
        process: a batch -> one result per item; an error fails every call that has an item in it.
        batch_size: most items per batch.
        threads: most batches at the same time; started with the first items.
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
        self._waiting: deque[tuple[ResultCollector[Result], int, AnyItem]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
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
            while not self._closed:
                batch: list[tuple[ResultCollector[Result], int, AnyItem]] = []
                while self._waiting and len(batch) < self._batch_size:
                    entry = self._waiting.popleft()
                    if entry[0].is_pending():
                        batch.append(entry)
                if batch:
                    return batch
                self._changed.wait()
            return []
