"""The address of a service, its start and its end, on uvicorn."""

import ipaddress
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from germline.types import GermlineError

GRACE_S = 5
"""How long requests may go on after the service was told to stop."""


def check_address(host: str, token: str | None) -> None:
    """Refuse a token that no header can hold, and an address without one beyond this machine."""
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise GermlineError("GERMLINE_TOKEN: use printable ASCII characters without spaces")
    is_loopback = host == "localhost"
    with suppress(ValueError):  # a name
        is_loopback = ipaddress.ip_address(host).is_loopback
    if token is None and not is_loopback:
        raise GermlineError(
            f"host={host} is reachable from other machines, so requests need a token: set "
            "GERMLINE_TOKEN, or serve on --host=127.0.0.1"
        )


class UvicornService:
    """A service of an ASGI application that listens at an address; port 0 takes any free one."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=2048)
        except (OSError, OverflowError) as error:
            raise GermlineError(
                f"host={host}, port={port}: {error}; use another port (--port), 0 for any free "
                "one, or another address (--host)"
            ) from None
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    @property
    def url(self) -> str:
        """The URL of the service, such as http://127.0.0.1:8000."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Answer requests until SIGINT (Ctrl-C) or SIGTERM; call it from the main thread."""
        with _raised_signals_end_quietly():
            self._server.run(sockets=[self._socket])

    @contextmanager
    def in_background(self) -> Iterator[str]:
        """Answer requests in a thread during a `with` block, which gets the URL."""
        thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        thread.start()
        try:
            yield self.url
        finally:
            self._server.should_exit = True
            thread.join()

    def close(self) -> None:
        """Listen no longer; needed only where the server was not run."""
        self._socket.close()


@contextmanager
def _raised_signals_end_quietly() -> Iterator[None]:
    """Ignore the signals that uvicorn raises again once it has stopped, so that callers clean up.

    uvicorn replaces the handlers while it runs.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
