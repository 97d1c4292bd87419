"""A thread that owns the engine and answers rows of many requests in batches.

Rows wait in a queue until the engine is free. A batch has the oldest row and all that can be
generated together with it. When a batch is finished, its clients send their next requests: before
the next batch, the thread waits until as many rows are there as were before, or until no more come.

A row whose future is cancelled leaves the queue; one that is being generated is discarded.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from germline.endpoint.http_app import RequestError
from germline.endpoint.row_generator import RowGenerator
from germline.endpoint.rows import NamedWeights, RowRequest, RowResult
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

GAP = (0.004, 0.1)
"""A batch waits for further rows until none came for so many seconds, or for this share of the time
of the batch before, if that is longer."""

GATHERING = (0.02, 0.25)
"""It waits so many seconds at most, or this share of the time of the batch before."""

Waiting = tuple[RowRequest, "Future[RowResult]"]


class EngineBatcher:
    """See the module's docstring; only this object's thread uses the engine from now on.

    `max_rows` are in a batch.
    """

    def __init__(self, weights: NamedWeights, *, max_rows: int) -> None:
        self.first_failure: Exception | None = None  # the error of the first batch that failed
        self._weights = weights
        self._generator = RowGenerator(weights)
        self._max_rows = max_rows
        self._arrived: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._waiting: list[Waiting] = []  # touched by the thread alone
        self._batch_s = 0.0
        self._expected = 0
        self._open: set[Future[RowResult]] = set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether rows are answered."""
        return self._thread.is_alive() and not self._closing

    @property
    def rows(self) -> int:
        """Number of rows that wait or are being generated."""
        return len(self._open)

    def submit(self, requests: Sequence[RowRequest]) -> "list[Future[RowResult]]":
        """Put rows into the queue; cancel a future to take its row out."""
        futures: list[Future[RowResult]] = [Future() for _ in requests]
        with self._changed:
            if self._closing:
                raise RequestError(503, "the server is closing", code="closing")
            self._open.update(futures)
            self._arrived.extend(zip(requests, futures, strict=True))
            self._changed.notify()
        for future in futures:
            future.add_done_callback(self._open.discard)
        return futures

    def close(self) -> None:
        """Answer no more rows, and close the engine."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._weights.close()

    def _run(self) -> None:
        while True:
            self._gather()
            if self._closing:
                break
            if batch := self._next_batch():
                started = time.monotonic()
                self._answer(*zip(*batch, strict=True))
                self._batch_s = time.monotonic() - started
        for future in list(self._open):
            future.cancel()

    def _gather(self) -> None:
        """Wait for rows, and a little longer for those that come with them."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._waiting or self._closing)
        gap, longest = (max(least, share * self._batch_s) for least, share in (GAP, GATHERING))
        deadline = time.monotonic() + longest
        while not self._closing:
            while self._arrived:
                self._encode(*self._arrived.popleft())
            left = min(gap, deadline - time.monotonic())
            if len(self._waiting) >= min(self._expected, self._max_rows) or left <= 0:
                break
            with self._changed:
                if not self._changed.wait_for(lambda: self._arrived or self._closing, left):
                    break
        # A batch that came too early must not make the next ones small.
        self._expected = max(len(self._waiting), 3 * self._expected // 4)

    def _encode(self, request: RowRequest, future: "Future[RowResult]") -> None:
        if future.cancelled():
            return
        try:
            self._waiting.append((self._generator.encode(request), future))
        except Exception as error:  # noqa: BLE001 - every error reaches the client
            _fail([future], error, "the tokenizer", 400)

    def _next_batch(self) -> list[Waiting]:
        """Take the oldest row, and all that can be generated together with it."""
        batch: list[Waiting] = []
        rest: list[Waiting] = []
        key: tuple[object, ...] = ()
        for row, future in self._waiting:
            if future.cancelled():
                continue
            own = self._generator.batch_key(row)
            key = key or own
            fits = own == key and len(batch) < self._max_rows
            (batch if fits else rest).append((row, future))
        self._waiting = rest
        return [waiting for waiting in batch if waiting[1].set_running_or_notify_cancel()]

    def _answer(self, rows: Sequence[RowRequest], futures: "Sequence[Future[RowResult]]") -> None:
        try:
            results = self._generator.generate(rows)
        except Exception as error:  # noqa: BLE001 - every error reaches the clients of the batch
            self.first_failure = self.first_failure or error
            _fail(futures, error, "the engine", 500)
        else:
            for future, result in zip(futures, results, strict=True):
                future.set_result(result)


def _fail(
    futures: "Sequence[Future[RowResult]]", error: Exception, what: str, expected_status: int
) -> None:
    """Let clients have an error; `expected_status` is that of an error with an explanation."""
    if isinstance(error, EngineLost):
        error = RequestError(503, str(error), code="engine_lost")
    elif isinstance(error, GermlineError):
        error = RequestError(expected_status, str(error))
    elif not isinstance(error, RequestError):
        log.error("%s failed for %d rows", what, len(futures), exc_info=error)
        error = RequestError(500, f"{what} failed: see the server's log")
    for future in futures:
        with suppress(Exception):  # it was cancelled meanwhile
            future.set_exception(error)
