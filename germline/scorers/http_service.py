"""A service that is asked over HTTP: its token, retries, and the scores of `germline serve`.

A request that fails because the service is away is repeated for `retry_timeout_s`, and twice if the
service fails with it (HTTP status 500). When the service has answered no request for that long,
requests fail at once for `AWAY_S`: threads wait for the service together and not one after the
other.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from germline.config.scorers import GermlineScorer, HttpScorer, HttpSettings
from germline.engines.http_client import HttpConnection, RequestRefused
from germline.scorers import Item, NotScoredError, Score, Scorer, missing, sendable
from germline.types import EngineLost, Example, GermlineError

log = logging.getLogger(__name__)

AWAY_S = 5.0

SERVER_ERROR, ERROR_PAUSES_S = 500, (0.5, 2.0)
"""Status from which on the service failed, perhaps for this request alone, which is sent again."""

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
        self._place = f"{name_of('url')}={config.url}"
        self._connection = HttpConnection(
            self._place,
            config.url,
            config.timeout_s,
            config.retry_timeout_s,
            self._check_open,
            headers=request_headers(config, name_of("token_env")),
            timeout_setting=name_of("timeout_s"),
        )
        self._clock = clock
        self._is_closed = False
        self._answered_at = self._away_until = -math.inf
        self._failure = ""  # of the last request that was lost

    def close(self) -> None:
        """Repeat no further request."""
        self._is_closed = True

    def post(self, path: str, body: object) -> Any:
        """Send an object and return the parsed response; repeat while the service is away.

        Raises:
            RequestRefused: the service refuses the request.
            ServiceAwayError: the service answers no request.
            NotScoredError: it does not answer this one.
        """
        self._check_open()
        begun = self._clock()
        if begun < self._away_until:
            raise ServiceAwayError(f"not asked, as it is away: {self._failure}")
        pauses = list(ERROR_PAUSES_S)
        while True:
            try:
                response = self._connection.post(path, body)
            except EngineLost as error:
                # One that was not reached was asked for that long; a late one was asked once.
                self._check_open()
                if self._clock() - begun >= self.config.retry_timeout_s:
                    raise self._lost(str(error)) from None
            except RequestRefused as refusal:  # a response, which says nothing of other requests
                self._answered_at, self._away_until = self._clock(), -math.inf
                if refusal.status < SERVER_ERROR or not pauses:
                    raise
                time.sleep(pauses.pop(0))
                self._check_open()
            else:
                self._answered_at, self._away_until = self._clock(), -math.inf
                return response

    def _check_open(self) -> None:
        if self._is_closed:
            raise ServiceAwayError(f"{self._place}: closed while a request was waiting")

    def _lost(self, failure: str) -> NotScoredError:
        """Return the error of a request without an answer; the service is away without others."""
        now = self._clock()
        if now - self._answered_at < self.config.retry_timeout_s:
            return NotScoredError(failure)
        if now >= self._away_until:
            log.warning("%s; its scores are missing until it answers again", failure)
        self._failure, self._away_until = failure, now + AWAY_S
        return ServiceAwayError(failure)


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


class GermlineServiceScorer(ServiceScorer):
    """Rewards or costs of `germline serve --reward`: POST /score_batch {prompts, responses}."""

    config: GermlineScorer

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Send one request and read the scores of the model that is asked for."""
        body = {
            "prompts": [_prompt(example) for _, example in items],
            "responses": [sendable(text) for text, _ in items],
        }
        response, field = self.post("/score_batch", body), f"{self.config.output}s"
        read = response if isinstance(response, dict) else {}
        if read.get(field) is None:
            raise NotScoredError(
                f"the service has no {field}: start it with --{self.config.output} MODEL, or set "
                f"{self.setting}.output; it says {repr(response)[:80]}"
            )
        rows = [read[field], read.get(f"{field}_missing") or [None] * len(items)]
        if any(not isinstance(row, list) or len(row) != len(items) for row in rows):
            raise NotScoredError(
                f"the response must have {len(items)} {field}: {repr(response)[:80]}"
            )
        return [_score(value, reason) for value, reason in zip(*rows, strict=True)]


def _prompt(example: Example) -> object:
    """Return the prompt as a text, or as messages where there are some before it."""
    if not example.context:
        return sendable(example.prompt)
    turns = [*example.context, ("user", example.prompt)]
    return [{"role": role, "content": sendable(content)} for role, content in turns]


def _score(value: object, reason: object) -> Score:
    """Read one score; anything but a finite number is missing."""
    if reason:
        return missing(str(reason))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return missing(f"the response has {repr(value)[:80]} where a finite number belongs")
    return Score(float(value))
