"""The FastAPI application of a service: its token, its limits, and its errors.

`make_app` returns an application whose requests pass `RequestGuard` first:

1. a request without the token is refused (401); `/health` needs none;
2. more requests at a time than `max_concurrent` are refused (429), a larger body too (413);
3. a request that takes longer than `timeout_s` ends (504, or a closed connection where the response
   has begun), as does a request whose client disconnects: its handler is cancelled.

Errors have the format of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

log = logging.getLogger(__name__)

HEALTH = "/health"
"""The path that answers without a token, and however many requests are running."""

DISCARDED = 4
"""A refused body is read up to so many times its limit, as most clients read the refusal only after
they have sent the body."""

DISCARD_S = 5.0
"""How long the body of a refused request is read."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class HttpLimits:
    """What a service accepts.

    Attributes:
        token: that requests must have as `Authorization: Bearer TOKEN`; None: none is needed.
        max_request_bytes: size of a request body.
        max_concurrent: requests at a time.
        timeout_s: time of one request, from its first byte to the last byte of the response.
    """

    token: str | None = field(default=None, repr=False)
    max_request_bytes: int = 2_000_000
    max_concurrent: int = 256
    timeout_s: float = 600.0


class RequestError(Exception):
    """A request that the service refuses.

    Attributes:
        status: of the HTTP response.
        message: what is wrong, and what to do.
        param: the field of the request that is wrong.
        code: a short name of the error.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


class AsciiJson(JSONResponse):
    """JSON in ASCII: a text with half a Unicode character, which UTF-8 lacks, has an escape."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of a JSON value."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(error: RequestError) -> AsciiJson:
    """Return the response to a request that is refused."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    detail = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return AsciiJson({"error": detail}, error.status, headers)


def make_app(title: str, limits: HttpLimits) -> FastAPI:
    """Return an application without routes, whose requests are guarded."""
    app = FastAPI(title=title, default_response_class=AsciiJson)
    app.add_middleware(RequestGuard, limits=limits)

    @app.exception_handler(RequestError)
    async def refused(_request: Request, error: RequestError) -> AsciiJson:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> AsciiJson:
        return error_response(_validation_error(error))

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> AsciiJson:
        if error.status_code == 400 and error.__cause__ is not None:
            return error_response(_not_json(error.__cause__))
        what = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(RequestError(error.status_code, what))

    @app.exception_handler(Exception)
    async def failed(_request: Request, error: Exception) -> AsciiJson:
        # The server logs the traceback.
        return error_response(RequestError(500, f"the service failed: {type(error).__name__}"))

    return app


def _validation_error(error: RequestValidationError) -> RequestError:
    """Name the first field that is wrong."""
    first = error.errors()[0]
    if isinstance(error.body, bytes):  # FastAPI parses a body of the content type JSON only
        return RequestError(
            400,
            "the body is not marked as JSON: send the header `content-type: application/json`",
            code="invalid_content_type",
        )
    place = [str(part)[:100] for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        detail, position = first.get("ctx", {}).get("error", ""), first["loc"][-1]
        return _not_json(f"{detail} (character {position})")
    field = ".".join(place) or None
    return RequestError(400, f"{field or 'the body'}: {first['msg']}", param=field)


def _not_json(reason: object) -> RequestError:
    return RequestError(400, f"the body is not JSON: {reason}", code="invalid_json")


class RequestGuard:
    """ASGI middleware: see the module's docstring.

    Attributes:
        active: number of requests that are being answered.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], limits: HttpLimits) -> None:
        self.app = app
        self.limits = limits
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] == HEALTH:
            await self.app(scope, receive, send)
            return
        body, response = Request(scope, receive).stream(), _Response(send)
        try:
            self._check(scope)
            self.active += 1
            try:
                async with asyncio.timeout(self.limits.timeout_s):
                    content = await self._read(body)
                    await self._answer(scope, content, receive, response)
            finally:
                self.active -= 1
        except TimeoutError:
            late = f"the request took longer than {self.limits.timeout_s:g} s"
            await response.refuse(RequestError(504, late, code="timeout"), scope, receive)
        except RequestError as error:
            with suppress(ClientDisconnect):
                await self._discard(body)
                await response.refuse(error, scope, receive)
        except ClientDisconnect:
            pass

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        token = self.limits.token
        if token is not None:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + token.encode()):
                raise RequestError(
                    401,
                    "the request needs the header `Authorization: Bearer TOKEN` with the token "
                    "of this service",
                    code="invalid_api_key",
                )
        if self.active >= self.limits.max_concurrent:
            raise RequestError(
                429,
                f"{self.active} requests are running, the most at a time: send the request again",
                code="too_many_requests",
            )
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.limits.max_request_bytes:
            raise self._too_large()

    async def _read(self, body: AsyncIterator[bytes]) -> bytes:
        """Read the body; a client may leave out its length."""
        content = bytearray()
        async for part in body:
            content += part
            if len(content) > self.limits.max_request_bytes:
                raise self._too_large()
        return bytes(content)

    def _too_large(self) -> RequestError:
        most = self.limits.max_request_bytes
        return RequestError(
            413, f"the body of a request may have {most} bytes at most", code="request_too_large"
        )

    async def _discard(self, body: AsyncIterator[bytes]) -> None:
        """Read the rest of a body that is refused, within limits."""
        left = DISCARDED * self.limits.max_request_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                async for part in body:
                    left -= len(part)
                    if left <= 0:
                        break

    async def _answer(
        self, scope: Scope, content: bytes, receive: Receive, response: "_Response"
    ) -> None:
        """Run the application; cancel it when the client disconnects."""
        gone = asyncio.Event()
        unread: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def replay() -> Message:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        handler = asyncio.ensure_future(self.app(scope, replay, response.send))
        watcher = asyncio.ensure_future(watch())
        try:
            await asyncio.wait({handler, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not (handler.done() or response.complete):
                raise ClientDisconnect
            await handler
        finally:
            for task in (handler, watcher):
                task.cancel()
            await asyncio.gather(handler, watcher, return_exceptions=True)


class _Response:
    """What is sent of a response.

    Attributes:
        begun: whether the status was sent.
        complete: whether the last byte was sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.complete = False

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        self.begun = True
        await self._send(message)
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")

    async def refuse(self, error: RequestError, scope: Scope, receive: Receive) -> None:
        """Send an error, where nothing was sent yet; else the server closes the connection."""
        if not self.begun:
            await error_response(error)(scope, receive, self._send)
