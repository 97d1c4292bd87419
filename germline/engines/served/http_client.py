"""JSON over HTTP to a server that may be away for a while: asked again, then given up as lost.

What a server says no to is `RequestRefused`, at once. What looks like a server that is gone or not
there yet (no connection, an answer cut short, a proxy's page in its place) is asked again, with
growing pauses, as long as the user's patience lasts; then it is `EngineLost`, and the run stops
resumable.

Nothing that comes from the network is ever unpickled: answers are JSON or plain text.
"""

import http.client
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
LONGEST_CONNECT_S = 10.0
AWAY = (429, 502, 503, 504)
"""Statuses of a server that is busy or starting, or of a proxy that does not reach it."""
_SHOWN = 300


class RequestRefused(GermlineError):
    """The server understood the request, and says no.

    Attributes:
        status: of the answer.
        words: what it says of it.
    """

    def __init__(self, message: str, status: int, words: str) -> None:
        super().__init__(message)
        self.status = status
        self.words = words


class _Away(Exception):
    """One attempt failed in a way that another may not; the message says how."""


@dataclass
class HttpConnection:
    """Asks one server.

    Attributes:
        name: what it is called in messages, such as `engine.base_url=http://localhost:30000`.
        url: scheme, host and port; what follows stands before every path.
        timeout_s: longest wait for one answer.
        retry_timeout_s: how long to ask again after a first failure; 0 asks once.
        look: called after every failure, before asking again; raises where that is in vain.
    """

    name: str
    url: str
    timeout_s: float
    retry_timeout_s: float = 0.0
    look: Callable[[], None] = lambda: None

    def get(self, path: str) -> Any:
        """Ask for what is at a path."""
        return self._insist("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """Send an object, and return the answer: parsed where it is JSON, else its text.

        Raises:
            Refused: the server says no.
            EngineLost: it is gone, also after it was asked again for `retry_timeout_s`.
        """
        return self._insist("POST", path, json.dumps(body).encode())

    def _insist(self, method: str, path: str, body: bytes | None) -> Any:
        failed_at: float | None = None
        pause = FIRST_PAUSE_S
        while True:
            try:
                return self._ask(method, path, body)
            except _Away as away:
                self.look()
                if failed_at is None:
                    failed_at = time.monotonic()
                    self._say_that_it_waits(path, away)
                if time.monotonic() - failed_at >= self.retry_timeout_s:
                    raise EngineLost(f"{self.name}: {path}: {away}{self._and_then()}") from away
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _and_then(self) -> str:
        if self.retry_timeout_s <= 0:
            return ""
        return f", also after {self.retry_timeout_s:g} s: when it is back, the run can be resumed"

    def _say_that_it_waits(self, path: str, away: _Away) -> None:
        if self.retry_timeout_s > 0:
            log.warning(
                "%s: %s: %s; asking for %g s more", self.name, path, away, self.retry_timeout_s
            )

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection = self._connected()
        try:
            connection.request(method, urlsplit(self.url).path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            content = answer.read().decode("utf-8", "replace")
        except TimeoutError as error:
            raise EngineLost(
                f"{self.name}: {path}: no answer within {self.timeout_s:g} s: it hangs, or "
                "engine.timeout_s is too short for so much work"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Away(f"it hung up ({str(error) or type(error).__name__})") from error
        finally:
            connection.close()
        return self._checked(path, answer.status, content)

    def _connected(self) -> http.client.HTTPConnection:
        """Connect anew for each request: threads may share this object, and a handshake is short.

        No proxy of the environment is used: the server is named by the address it listens at.
        """
        parts = urlsplit(self.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        wait_s = min(LONGEST_CONNECT_S, self.timeout_s)
        connection = kind(parts.hostname or "", parts.port, timeout=wait_s)
        try:
            connection.connect()
        except OSError as error:
            raise _Away(f"cannot be reached ({str(error) or type(error).__name__})") from error
        connection.sock.settimeout(self.timeout_s)
        return connection

    def _checked(self, path: str, status: int, content: str) -> Any:
        if status in AWAY:
            raise _Away(f"answered {status}: {_shortened(content)}")
        if content.lstrip()[:1] == "<":
            raise _Away(
                f"answered with a web page, not as a server of models: {_shortened(content)}"
            )
        try:
            found = json.loads(content)
        except ValueError:
            found = content
        if status >= 400:
            words = _words(found)
            raise RequestRefused(f"{self.name}: {path}: refused ({status}): {words}", status, words)
        return found


def _words(answer: Any) -> str:
    """Find what a refusal says, wherever the server put it."""
    while isinstance(answer, dict):
        keys = ("message", "error_message", "error", "detail")
        answer = next((answer[key] for key in keys if answer.get(key)), str(answer))
    return _shortened(str(answer))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} ..."
