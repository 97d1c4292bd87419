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
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEALTH = "/health"
"""The path that answers without a token, and however many requests are running."""


@dataclass(frozen=True)
class HttpLimits:
    """What a service accepts: how many requests at a time, and how long and large each may be.

    The time is from the first byte of the request to the last one of the response.
    """

    token: str | None = field(default=None, repr=False)
    max_request_bytes: int = 2_000_000
    max_concurrent: int = 256
    timeout_s: float = 600.0


class RequestError(HTTPException):
    """A request that the service refuses; `param` is the field that is wrong."""

    def __init__(
        self, status_code: int, detail: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        headers = {"Retry-After": "1"} if status_code in (429, 503) else {}
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


def make_app(title: str, limits: HttpLimits) -> FastAPI:
    """Return an application without routes, whose requests are guarded."""
    app = FastAPI(title=title, default_response_class=AsciiJson)
    app.add_middleware(RequestGuard, limits=limits)

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
    place = [str(part)[:100] for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return RequestError(400, f"the body is not JSON: {first['ctx']['error']}")
    same = [one["msg"] for one in others if one["loc"][:2] == first["loc"][:2]]
    said, name = " or ".join(dict.fromkeys([first["msg"], *same])), ".".join(place) or "the body"
    return RequestError(400, f"{name}: {said}", param=place[0] if place else None)


class RequestGuard:
    """ASGI middleware: see the module's docstring."""

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self.app = app
        self.limits = limits
        self.active = 0  # requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] == HEALTH:
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        self.active += 1
        try:
            self._check(scope)
            async with asyncio.timeout(self.limits.timeout_s):
                await self._answer(scope, receive, begin)
        except TimeoutError:
            late = f"the request took longer than {self.limits.timeout_s:g} s"
            error = RequestError(504, late, code="timeout")
        except RequestError as refusal:
            error = refusal
        else:
            return
        finally:
            self.active -= 1
        if not has_begun:
            await error_response(error)(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        token, headers = self.limits.token, dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if token is not None and not hmac.compare_digest(given, b"Bearer " + token.encode()):
            raise RequestError(
                401,
                "the request needs the header `Authorization: Bearer TOKEN` with the token of this "
                "service",
                code="invalid_api_key",
            )
        if self.active > self.limits.max_concurrent:
            raise RequestError(
                429,
                f"{self.limits.max_concurrent} requests are running, the most at a time: send the "
                "request again",
                code="too_many_requests",
            )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and run the application; cancel it when the client disconnects."""
        body, is_whole = bytearray(), False
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > self.limits.max_request_bytes:
                most = self.limits.max_request_bytes
                said = f"the body of a request may have {most} bytes at most"
                raise RequestError(413, said, code="request_too_large")
            is_whole = not message.get("more_body")
        unread: list[Message] = [{"type": "http.request", "body": bytes(body)}]
        gone = asyncio.ensure_future(receive())

        async def replay() -> Message:
            return unread.pop() if unread else await asyncio.shield(gone)

        handler = asyncio.ensure_future(self.app(scope, replay, send))
        try:
            await asyncio.wait({handler, gone}, return_when=asyncio.FIRST_COMPLETED)
            if handler.done():
                handler.result()
        finally:
            for task in (handler, gone):
                task.cancel()
            await asyncio.gather(handler, gone, return_exceptions=True)
