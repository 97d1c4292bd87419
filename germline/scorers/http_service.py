"""A service that is asked over HTTP: its token, and requests that are repeated while it is away.

A service that refuses a batch may refuse one text of it, such as one that is too long. The batch is
then halved until the refused texts are found, so that the others are scored.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from germline.config.scorers import HttpScorer, HttpSettings
from germline.engines.served.http_client import HttpConnection, RequestRefused
from germline.scorers.circuit_breaker import CircuitBreaker, ServiceAwayError
from germline.scorers.types import Item, NotScoredError, Score, missing
from germline.types import EngineLost, GermlineError

SERVER_ERROR = 500
ERROR_ATTEMPTS = 3
"""Attempts at a request that the service answers with an error of its own (status 500)."""

REFUSED_FOR_ALL = (401, 403, 404)
"""Statuses that concern every request, such as a wrong token or a model that is not there."""


class HttpService:
    """Sends requests to a service; thread-safe.

    Args:
        config: where the service is, and how long to wait for it.
        name_of: the name of a field of `config` in errors, such as `task.scorers.helpful.url`.

    Raises:
        GermlineError: the environment variable with the token is not set.
    """

    def __init__(self, config: HttpSettings, name_of: Callable[[str], str]) -> None:
        self.name_of = name_of
        place = f"{name_of('url')}={config.url}"
        self._breaker = CircuitBreaker(place, config.retry_timeout_s, name_of("retry_timeout_s"))
        self._connection = HttpConnection(
            place,
            config.url,
            config.timeout_s,
            headers=request_headers(config, name_of("token_env")),
            timeout_setting=name_of("timeout_s"),
        )

    def close(self) -> None:
        """End requests that wait for the next attempt."""
        self._breaker.close()

    def get(self, path: str) -> Any:
        """Return what is at a path, asked once.

        Raises:
            RequestRefused: the service refuses the request.
            EngineLost: the service does not answer.
        """
        return self._connection.get(path)

    def post(self, path: str, body: object) -> Any:
        """Send an object and return the parsed response; repeat while the service is away.

        Raises:
            RequestRefused: the service refuses the request.
            NotScoredError: the service does not answer.
        """
        errors = 0

        def attempt() -> Any:
            nonlocal errors
            try:
                return self._connection.post(path, body)
            except EngineLost as failure:
                raise ServiceAwayError(str(failure)) from None
            except RequestRefused as refusal:
                errors += 1
                if refusal.status == SERVER_ERROR and errors < ERROR_ATTEMPTS:
                    raise ServiceAwayError(str(refusal)) from None
                raise

        return self._breaker.call(attempt)


def request_headers(config: HttpSettings, setting: str) -> dict[str, str]:
    """Return the headers of every request: the token, where the service needs one.

    Raises:
        GermlineError: the environment variable with the token is not set.
    """
    if config.token_env is None:
        return {}
    token = os.environ.get(config.token_env, "")
    if not token:
        raise GermlineError(
            f"{setting}={config.token_env}: this environment variable is not set: "
            f"export {config.token_env}=..., or drop the setting if the service needs no token"
        )
    return {"Authorization": f"Bearer {token}"}


class ServiceScorer(HttpService):
    """Asks a service for scores; subclasses say what is sent and how the response is read.

    Args:
        setting: name of the section, such as `task.scorers.helpful`.
        config: its settings.

    Raises:
        GermlineError: the environment variable with the token is not set.
    """

    reports_truncation = False

    def __init__(self, setting: str, config: HttpScorer) -> None:
        super().__init__(config, lambda field: f"{setting}.{field}")
        self.setting = setting
        self.batch_size: int = getattr(config, "batch_size", 1)
        self.concurrency = config.concurrency

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Score completions; a batch that is refused is scored in halves.

        Raises:
            NotScoredError: nothing of the batch can be scored.
        """
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
        """Send one request and read its response; override this.

        Raises:
            NotScoredError: the response cannot be read.
            RequestRefused: the service refuses the request.
        """
        raise NotImplementedError
