"""The application of every service: its token, and errors as JSON; its address and its end."""

import http.client
import json
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from queue import Queue

import pytest
from fastapi import Request

from germline.endpoint.http_app import (
    RequestError,
    UvicornService,
    check_address,
    make_app,
    results_of,
)
from germline.types import GermlineError
from tests.hang_limit import HANG_S, wait_until

# FastAPI reads the signatures of these routes when they are added.


class Service:
    """A service with a route that echoes JSON, one that refuses, and one that fails."""

    def __init__(self, token=None):
        self.waiting: Queue[list[Future[None]]] = Queue()
        self.app = make_app("test", token)

        @self.app.get("/health")
        async def health() -> dict[str, str]:
            return {"status": "ok"}

        @self.app.post("/echo")
        async def echo(values: dict[str, int]) -> dict[str, int]:
            return values

        @self.app.post("/refuse")
        async def refuse() -> None:
            raise RequestError(400, "\ud800 is half a character", param="text", code="half")

        @self.app.post("/wait")
        async def wait(request: Request) -> None:
            waiting: list[Future[None]] = [Future(), Future()]
            self.waiting.put(waiting)
            await results_of(waiting, request)

        @self.app.post("/fail")
        async def fail() -> None:
            raise ZeroDivisionError

    @contextmanager
    def running(self):
        server = UvicornService(self.app, "127.0.0.1", 0)
        with server.in_background() as url:
            self.port = int(url.rpartition(":")[2])
            yield self

    def request(self, method, path, body=None, headers=()):
        """Return the status and the JSON of the response."""
        headers = {"content-type": "application/json", **dict(headers)}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def post(self, path, body=b"{}", headers=()):
        return self.request("POST", path, body, headers)


@pytest.fixture
def service():
    with Service().running() as running:
        yield running


def error_of(response):
    status, body = response
    return status, body["error"]


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "param", "said"),
    [
        ("/echo", b'{"a": 1', "", 400, None, "not JSON: Expecting ',' delimiter"),
        ("/echo", b'{"a\xff": 1}', "", 400, None, "parsing the body"),
        ("/echo", b"[" * 100_000, "", 400, None, ""),
        ("/echo", b'{"a": "b"}', "", 400, "a", "a: Input should be a valid integer"),
        ("/echo", b"", "", 400, None, "the body: Field required"),
        ("/echo", b"[]", "", 400, None, "the body: Input should be a valid dictionary"),
        ("/echo", b'{"a": 1}', "text/plain", 400, None, "content-type: application/json"),
        ("/echo", b"a=1", "application/x-www-form-urlencoded", 400, None, "content-type: appl"),
        ("/refuse", b"", "", 400, "text", "\ud800 is half a character"),
        ("/nowhere", b"", "", 404, None, "Not Found"),
        ("/health", b"", "", 405, None, "Method Not Allowed"),
        ("/fail", b"", "", 500, None, "ZeroDivisionError"),
    ],
)
def test_errors_have_openais_format(service, path, body, kind, status, param, said):
    headers = {"content-type": kind} if kind else {}
    found, error = error_of(service.post(path, body, headers))
    assert (found, error["param"]) == (status, param)
    assert said in error["message"]
    assert error["type"] == ("server_error" if status == 500 else "invalid_request_error")
    assert service.post("/echo", b'{"a": 1}') == (200, {"a": 1})


def test_a_request_without_the_token_is_a_401_and_health_needs_none():
    with Service(token="secret").running() as service:
        assert error_of(service.post("/echo"))[0] == 401
        for wrong in (
            "Bearer wrong",
            "Bearer secret2",
            "secret",
            "Basic secret",
            "Bearer s\u00e9cret",
        ):
            headers = {"authorization": wrong.encode("latin-1")}
            status, error = error_of(service.post("/echo", headers=headers))
            assert (status, error["code"]) == (401, "invalid_api_key"), wrong
        given = {"authorization": "Bearer secret"}
        assert service.post("/echo", b'{"a": 1}', given) == (200, {"a": 1})
        assert service.request("GET", "/health") == (200, {"status": "ok"})
        assert service.request("GET", "/openapi.json")[0] == 404


def test_a_client_that_disconnects_takes_what_it_waits_for_out_of_the_queue(service):
    with socket.create_connection(("127.0.0.1", service.port)) as abrupt:
        abrupt.sendall(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        futures = service.waiting.get(timeout=HANG_S)
    wait_until(lambda: all(future.cancelled() for future in futures))
    assert service.post("/echo", b'{"a": 1}') == (200, {"a": 1})


def test_an_error_takes_the_other_rows_of_its_request_out_of_the_queue(service):
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(service.post, "/wait")
        first, second = service.waiting.get(timeout=HANG_S)
        first.set_exception(RequestError(503, "no engine"))
        assert error_of(answer.result(HANG_S))[0] == 503
    assert second.cancelled()


@pytest.mark.parametrize(
    ("host", "token", "problem"),
    [
        *((host, None, None) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, None, "GERMLINE_TOKEN") for host in ("0.0.0.0", "::", "192.168.0.7", "a.com", "")),
        ("0.0.0.0", "secret", None),
        *(("::1", token, "TOKEN: ") for token in ("", "two words", "s\u00e9cret", "a\nb", "a\n")),
    ],
)
def test_other_addresses_than_loopback_need_a_token_that_a_header_can_hold(host, token, problem):
    with nullcontext() if problem is None else pytest.raises(GermlineError, match=problem):
        check_address(host, token)


def test_a_port_in_use_is_refused_with_a_remedy(service):
    with pytest.raises(GermlineError, match=f"port={service.port}.*--port"):
        UvicornService(service.app, "127.0.0.1", service.port)
