"""JSON over HTTP to an inference server, with retries while the server is unreachable.

A server that refuses a request raises `RequestRefused` at once. A server that seems to be gone or
not yet ready (no connection, an incomplete response, a web page of a proxy) is asked again, with
growing pauses, for `retry_timeout_s`; then the request raises `EngineLost`, and the run stops and
can be resumed.

Nothing that comes from the network is ever unpickled: responses are JSON or plain text.
"""

import contextlib
import http.client
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
LONGEST_CONNECT_S = 10.0
UNAVAILABLE = (408, 429, 502, 503, 504, 529)
"""Statuses of a server that is busy or starting, or of a proxy that does not reach it.

529 is the status with which hosts of judges say that they are overloaded.
"""
_LONGEST_TEXT = 300


class RequestRefused(GermlineError):
    """The server understood the request and refused it, for a reason of its own."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class _Unreachable(Exception):
    """One attempt failed in a way that a later attempt may not; the message says how."""


@dataclass
class HttpConnection:
    """Sends requests to one server.

    Attributes:
        name: of the server in messages, such as `engine.base_url=http://localhost:30000`.
        url: scheme, host, port and an optional prefix of every path.
        retry_timeout_s: how long to retry after a first failure; 0: no retry.
        check_alive: called after every failure, before the retry; raises where a retry is useless.
        timeout_setting: the setting that `timeout_s`, of one response, comes from, for errors.
    """

    name: str
    url: str
    timeout_s: float
    retry_timeout_s: float = 0.0
    check_alive: Callable[[], None] = lambda: None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_setting: str = "engine.timeout_s"

    def get(self, path: str) -> Any:
        """Request what is at a path."""
        return self._send_with_retries("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """Send an object, and return the response: parsed if it is JSON, else its text."""
        return self._send_with_retries("POST", path, json.dumps(body).encode())

    @contextlib.contextmanager
    def invalid_response_is_loss(self) -> Iterator[None]:
        """Raise `EngineLost` where reading a response fails, as it cannot be the server's."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EngineLost(
                f"{self.name}: its response is invalid ({type(error).__name__}: {error}): look "
                "into the server's log, and at what is between, such as a proxy"
            ) from error

    def _send_with_retries(self, method: str, path: str, body: bytes | None) -> Any:
        place = f"{self.name}: {path}" if path else self.name  # a URL may be the whole path
        failed_at: float | None = None
        pause = FIRST_PAUSE_S
        while True:
            try:
                return self._response(place, *self._send(method, path, body))
            except TimeoutError as error:
                raise EngineLost(
                    f"{place}: no answer within {self.timeout_s:g} s: the server hangs, or "
                    f"{self.timeout_setting} is too short for so much work"
                ) from error
            except _Unreachable as failure:
                self.check_alive()
                retry_s = self.retry_timeout_s
                if failed_at is None:
                    failed_at = time.monotonic()
                    if retry_s > 0:
                        log.warning("%s: %s; retrying for %g s", place, failure, retry_s)
                if time.monotonic() - failed_at >= retry_s:
                    also = f", also after {retry_s:g} s of retries" if retry_s > 0 else ""
                    raise EngineLost(f"{place}: {failure}{also}") from failure
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, str]:
        """Send one request over a connection of its own, and return status and text.

        Threads may share this object, and a handshake is short. No proxy of the environment is
        used: the URL is the address the server listens at.
        """
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        wait_s = min(LONGEST_CONNECT_S, self.timeout_s)
        connection = kind(parts.hostname or "", parts.port, timeout=wait_s)
        try:
            connection.connect()
        except OSError as error:
            raise _Unreachable(
                f"cannot be reached ({str(error) or type(error).__name__})"
            ) from error
        connection.sock.settimeout(self.timeout_s)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            target = parts.path.rstrip("/") + path
            connection.request(method, target, body, {**headers, **self.headers})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            found = str(error) or type(error).__name__
            raise _Unreachable(f"the connection broke ({found})") from error
        finally:
            connection.close()

    def _response(self, place: str, status: int, content: str) -> Any:
        if status in UNAVAILABLE:
            raise _Unreachable(f"answered {status}: {_shortened(content)}")
        if content.lstrip()[:1] == "<":
            raise _Unreachable(
                f"answered with a web page, which no inference server does: {_shortened(content)}"
            )
        try:
            response = json.loads(content)
        except ValueError:
            response = content
        if status >= 400:
            reason = _refusal_reason(response)
            raise RequestRefused(f"{place}: refused ({status}): {reason}", status, reason)
        return response


def _refusal_reason(response: Any) -> str:
    """Find the explanation in a refusal; servers put it under different keys."""
    while isinstance(response, dict):
        keys = ("message", "error_message", "error", "detail")
        response = next((response[key] for key in keys if response.get(key)), str(response))
    return _shortened(str(response))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]} ..."
