"""An HTTP service: its FastAPI application, token and errors, and its address, start and end.

A request without the token is refused (401); `/health` needs none. Errors have the format of
OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.
"""

import asyncio
import hmac
import ipaddress
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from germline.types import GermlineError

HEALTH = "/health"
"""The path that answers without a token."""

GONE_S = 0.5
"""Seconds between looks at whether a client has closed its connection."""


class RequestError(HTTPException):
    """A request that the service refuses; `param` is the field that is wrong."""

    def __init__(
        self, status_code: int, detail: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        headers = {"Retry-After": "1"} if status_code == 503 else {}
        if status_code == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status_code, detail, headers)
        self.param = param
        self.code = code


class AsciiJson(JSONResponse):
    """JSON in ASCII: a text with half a Unicode character, which UTF-8 lacks, has an escape."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of a JSON value."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(error: HTTPException) -> AsciiJson:
    """Return the response to a request that is refused."""
    detail = {
        "message": error.detail,
        "type": "server_error" if error.status_code >= 500 else "invalid_request_error",
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", None),
    }
    return AsciiJson({"error": detail}, error.status_code, error.headers)


def make_app(title: str, token: str | None) -> FastAPI:
    """Return an application without routes, whose requests need the token."""

    async def check_token(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        is_open = token is None or request.url.path == HEALTH
        if not is_open and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise RequestError(
                401,
                "the request needs the header `Authorization: Bearer TOKEN` with the token of this "
                "service",
                code="invalid_api_key",
            )

    app = FastAPI(
        title=title,
        openapi_url=None,  # its pages would need no token
        default_response_class=AsciiJson,
        dependencies=[Depends(check_token)],
    )

    @app.exception_handler(HTTPException)
    async def refused(_request: Request, error: HTTPException) -> AsciiJson:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> AsciiJson:
        return error_response(_as_request_error(error))

    @app.exception_handler(Exception)
    async def failed(_request: Request, error: Exception) -> AsciiJson:
        # The server logs the traceback.
        return error_response(RequestError(500, f"the service failed: {type(error).__name__}"))

    return app


def _as_request_error(error: RequestValidationError) -> RequestError:
    """Name the first field that is wrong, and what pydantic says of each type that it may have."""
    first, *others = error.errors()
    if isinstance(error.body, bytes):  # FastAPI parses a body of the content type JSON only
        message = "send JSON, with the header `content-type: application/json`"
        return RequestError(400, message)
    if first["type"] == "json_invalid":
        return RequestError(400, f"the body is not JSON: {first['ctx']['error']}")
    place = [str(part)[:100] for part in first["loc"][1:]]
    same = [one["msg"] for one in others if one["loc"][:2] == first["loc"][:2]]
    said = " or ".join(dict.fromkeys([first["msg"], *same]))
    message = f"{'.'.join(place) or 'the body'}: {said}"
    return RequestError(400, message, param=place[0] if place else None)


async def results_of(futures: "Sequence[Future[Any]]", request: Request) -> list[Any]:
    """Return the results of the futures of a request.

    All are cancelled with the first error, and when the client has closed the connection.
    """
    answered = asyncio.gather(*map(asyncio.wrap_future, futures))
    answered.add_done_callback(lambda one: one.cancelled() or one.exception())  # perhaps unread
    try:
        while not (await asyncio.wait([answered], timeout=GONE_S))[0]:
            if await request.is_disconnected():
                raise RequestError(499, "the client has closed the connection")
        return await answered
    finally:
        for future in futures:
            future.cancel()


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
