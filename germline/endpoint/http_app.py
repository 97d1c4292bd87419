"""The FastAPI application of a service: its token, and its errors.

`make_app` returns an application whose requests pass `RequestGuard` first:

1. a request without the token is refused (401); `/health` needs none;
2. where the client disconnects, the handler of its request is cancelled.

Errors have the format of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.
"""

import asyncio
import hmac
import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEALTH = "/health"
"""The path that answers without a token."""


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
    """Return an application without routes, whose requests are guarded."""
    app = FastAPI(title=title, default_response_class=AsciiJson)
    app.add_middleware(RequestGuard, token=token)

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

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] == HEALTH:
            await self.app(scope, receive, send)
        elif self._is_allowed(scope):
            await self._answer(scope, receive, send)
        else:
            refusal = RequestError(
                401,
                "the request needs the header `Authorization: Bearer TOKEN` with the token of this "
                "service",
                code="invalid_api_key",
            )
            await error_response(refusal)(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        token = self._token
        return token is None or hmac.compare_digest(given, b"Bearer " + token.encode())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and run the application; cancel it when the client disconnects."""
        body, is_whole = bytearray(), False
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
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
