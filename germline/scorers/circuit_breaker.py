"""Retries with growing pauses, and a circuit breaker, for the requests to one service.

A request that fails because the service is away is repeated for `retry_timeout_s`. When the service
has answered no request for that long, the circuit opens: requests fail at once, except one every
`PROBE_EVERY_S`, which tries whether the service is back. The first response closes the circuit.
All threads that ask one service share its circuit breaker, so they wait for it together and not one
after the other.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from germline.scorers.types import NotScoredError, ScorerClosedError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
PROBE_EVERY_S = 5.0

Response = TypeVar("Response")


class ServiceAwayError(NotScoredError):
    """An attempt failed in a way that a later attempt may not; the message names the service.

    Attributes:
        circuit_is_open: whether the circuit was open when the attempt failed. Another thread's
            response may close it at any moment, so the circuit itself does not say this later.
    """

    circuit_is_open = False


class CircuitBreaker:
    """Repeats the requests to one service; thread-safe.

    Args:
        name: of the service in messages.
        retry_timeout_s: how long to repeat a request.
        setting: the setting that `retry_timeout_s` comes from, for messages.
        clock: in seconds.
    """

    def __init__(
        self,
        name: str,
        retry_timeout_s: float,
        setting: str = "retry_timeout_s",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._setting = setting
        self._retry_timeout_s = retry_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pauses = random.Random(0)
        self._failing_since: float | None = None
        self._failure_logged = False
        self._next_probe: float | None = None
        self._last_failure = ""

    @property
    def is_open(self) -> bool:
        """Whether requests fail at once."""
        return self._next_probe is not None

    def call(self, attempt: Callable[[], Response]) -> Response:
        """Return what an attempt returns; repeat it while it raises `ServiceAwayError`.

        Raises:
            ServiceAwayError: the service is away, also after the retries.
            ScorerClosedError: the scorer was closed.
        """
        gives_up_at = math.inf
        pause_s = FIRST_PAUSE_S
        while True:
            self._check_circuit()
            try:
                response = attempt()
            except ServiceAwayError as failure:
                now = self._clock()
                gives_up_at = min(gives_up_at, now + self._retry_timeout_s)
                failure.circuit_is_open = self._count_failure(failure, now)
                if now >= gives_up_at or failure.circuit_is_open:
                    raise
            except Exception:
                self._close_circuit(is_back=False)  # a refusal, such as status 500, is an answer
                raise
            else:
                self._close_circuit(is_back=True)
                return response
            # Threads that failed together do not ask again at the same moment.
            self._closed.wait(pause_s * self._pauses.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        """End the pauses of all threads; their calls raise `ScorerClosedError`."""
        self._closed.set()

    def _check_circuit(self) -> None:
        """Let the request through, or raise an error because the circuit is open."""
        if self._closed.is_set():
            raise ScorerClosedError(f"{self._name}: closed while a request was waiting")
        with self._lock:
            if self._next_probe is None:
                return
            now = self._clock()
            if now < self._next_probe:
                failure = ServiceAwayError(
                    f"{self._name}: not asked, as it has not answered for a while; the last "
                    f"attempt failed: {self._last_failure}"
                )
                failure.circuit_is_open = True
                raise failure
            self._next_probe = now + PROBE_EVERY_S

    def _count_failure(self, failure: ServiceAwayError, now: float) -> bool:
        """Count a failure, and return whether the circuit is open now."""
        with self._lock:
            self._last_failure = str(failure).removeprefix(f"{self._name}: ")
            is_first, self._failure_logged = not self._failure_logged, True
            if self._failing_since is None:
                self._failing_since = now
            opens = now - self._failing_since >= self._retry_timeout_s
            is_announced = opens and self._next_probe is None
            if opens:
                self._next_probe = now + PROBE_EVERY_S
            is_open = self.is_open
        if is_announced:
            log.warning("%s; its scores are missing until it answers again", failure)
        elif is_first:
            log.warning("%s; retrying for %g s (%s)", failure, self._retry_timeout_s, self._setting)
        return is_open

    def _close_circuit(self, *, is_back: bool) -> None:
        with self._lock:
            self._failing_since = self._next_probe = None
            announced = is_back and self._failure_logged
            self._failure_logged = self._failure_logged and not is_back
        if announced:
            log.warning("%s: answers again", self._name)
