"""A service that is asked over HTTP: its token, retries, and a circuit breaker.

A request that fails because the service is away is repeated for `retry_timeout_s`, with growing
pauses. When the service has answered no request for that long, the circuit opens: requests fail at
once, except one every `PROBE_EVERY_S`, which tries whether the service is back. The first response
closes the circuit. All threads share it, so they wait for the service together and not one after
the other.
"""

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from germline.config.scorers import HttpScorer, HttpSettings
from germline.engines.served.http_client import HttpConnection, RequestRefused
from germline.scorers.types import Item, NotScoredError, Score, Scorer, missing
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
PROBE_EVERY_S = 5.0

SERVER_ERROR = 500
ERROR_ATTEMPTS = 3
"""Attempts at a request that the service answers with an error of its own (status 500)."""

REFUSED_FOR_ALL = (401, 403, 404)
"""Statuses that concern every request, such as a wrong token or a model that is not there."""


class ServiceAwayError(NotScoredError):
    """The service has answered no request for `retry_timeout_s`, or is closed."""


class HttpService:
    """Sends requests to a service; thread-safe.

    `name_of` returns the name of a field of the config in errors, as `task.scorers.helpful.url`.
    """

    def __init__(
        self,
        config: HttpSettings,
        name_of: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.concurrency = config.concurrency
        self.name_of = name_of
        self._place = f"{name_of('url')}={config.url}"
        self._connection = HttpConnection(
            self._place,
            config.url,
            config.timeout_s,
            headers=request_headers(config, name_of("token_env")),
            timeout_setting=name_of("timeout_s"),
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pauses = random.Random(0)
        self._failing_since: float | None = None
        self._next_probe: float | None = None  # a time: the circuit is open
        self._failure_logged = False
        self._last_failure = ""

    def close(self) -> None:
        """End the pauses of all threads; their requests fail."""
        self._closed.set()

    def post(self, path: str, body: object) -> Any:
        """Send an object and return the parsed response; repeat while the service is away.

        Raises:
            RequestRefused: the service refuses the request.
            ServiceAwayError: the service answers no request.
            NotScoredError: it does not answer this one.
        """
        gives_up_at, pause_s, errors = math.inf, FIRST_PAUSE_S, 0
        while True:
            self._check_circuit()
            failure: EngineLost | RequestRefused
            try:
                response = self._connection.post(path, body)
            except EngineLost as error:
                failure = error
            except RequestRefused as refusal:
                errors += 1
                if refusal.status != SERVER_ERROR or errors == ERROR_ATTEMPTS:
                    self._close_circuit(is_back=False)
                    raise
                failure = refusal
            else:
                self._close_circuit(is_back=True)
                return response
            now = self._clock()
            self._count_failure(str(failure), now)
            gives_up_at = min(gives_up_at, now + self.config.retry_timeout_s)
            if now >= gives_up_at:
                raise NotScoredError(str(failure))
            # Threads that failed together do not ask again at the same moment.
            self._closed.wait(pause_s * self._pauses.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _check_circuit(self) -> None:
        if self._closed.is_set():
            raise ServiceAwayError(f"{self._place}: closed while a request was waiting")
        with self._lock:
            if self._next_probe is None:
                return
            now = self._clock()
            if now < self._next_probe:
                raise ServiceAwayError(
                    f"{self._place}: not asked, as it has not answered for a while; the last "
                    f"attempt failed: {self._last_failure}"
                )
            self._next_probe = now + PROBE_EVERY_S

    def _count_failure(self, failure: str, now: float) -> None:
        """Open the circuit if it is time, and raise an error if it is open."""
        with self._lock:
            self._last_failure = failure.removeprefix(f"{self._place}: ")
            is_first, self._failure_logged = not self._failure_logged, True
            self._failing_since = now if self._failing_since is None else self._failing_since
            was_open = self._next_probe is not None
            if now - self._failing_since >= self.config.retry_timeout_s:
                self._next_probe = now + PROBE_EVERY_S
            is_open = self._next_probe is not None
        if is_open and not was_open:
            log.warning("%s; its scores are missing until it answers again", failure)
        elif is_first:
            setting = self.name_of("retry_timeout_s")
            log.warning("%s; retrying for %g s (%s)", failure, self.config.retry_timeout_s, setting)
        if is_open:
            raise ServiceAwayError(failure)

    def _close_circuit(self, *, is_back: bool) -> None:
        """Note a response; a refusal, such as status 500, is one, but says nothing of others."""
        with self._lock:
            self._failing_since = self._next_probe = None
            is_announced = is_back and self._failure_logged
            self._failure_logged = self._failure_logged and not is_back
        if is_announced:
            log.warning("%s: answers again", self._place)


def request_headers(config: HttpSettings, setting: str) -> dict[str, str]:
    """Return the headers of every request; the variable with the token must be set."""
    if config.token_env is None:
        return {}
    token = os.environ.get(config.token_env, "")
    if not token:
        raise GermlineError(
            f"{setting}={config.token_env}: this environment variable is not set: "
            f"export {config.token_env}=..., or drop the setting if the service needs no token"
        )
    return {"Authorization": f"Bearer {token}"}


class ServiceScorer(HttpService, Scorer):
    """Asks a service for scores; subclasses say what is sent and how the response is read.

    `setting` is the name of the section, such as `task.scorers.helpful`.
    """

    def __init__(self, config: HttpScorer, setting: str) -> None:
        super().__init__(config, lambda field: f"{setting}.{field}")
        self.setting = setting
        self.batch_size: int = getattr(config, "batch_size", 1)

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Score completions; a batch that is refused, perhaps for one of its texts, in halves."""
        try:
            return self.request_scores(items)
        except RequestRefused as refusal:
            if refusal.status in REFUSED_FOR_ALL:
                raise NotScoredError(str(refusal)) from None
            if len(items) == 1:
                return [missing(str(refusal))]
        middle = len(items) // 2
        return [*self.score(items[:middle]), *self.score(items[middle:])]

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Send one request and read its response; override this."""
        raise NotImplementedError
