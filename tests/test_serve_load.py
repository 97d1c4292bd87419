"""`germline serve` under abrupt disconnects."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from openai import OpenAI

from germline.endpoint.engine_batcher import EngineBatcher
from germline.endpoint.openai_app import Endpoint
from germline.endpoint.uvicorn_service import UvicornService
from germline.services.serve import ServedWeights
from tests.hang_limit import HANG_S
from tests.serving import chat, text_of
from tests.toy_runs import run


class Served:
    """A server of a toy run whose engine can be held up.

    Attributes:
        port, url: of the server.
    """

    def __init__(self, folder):
        weights = ServedWeights.open(str(folder))
        self.may_generate = threading.Event()
        self.may_generate.set()
        self.is_generating = threading.Event()
        generate = weights.engine.generate

        def held_up(members, examples, decoding):
            self.is_generating.set()
            assert self.may_generate.wait(HANG_S)
            return generate(members, examples, decoding)

        setattr(weights.engine, "generate", held_up)  # noqa: B010 - a method, to mypy
        self.batcher = EngineBatcher(weights, max_rows=64)
        self.app = Endpoint(weights, self.batcher, 64).app()

    @contextmanager
    def running(self):
        server = UvicornService(self.app, "127.0.0.1", 0)
        try:
            with server.in_background() as url:
                self.url, self.port = url, int(url.rpartition(":")[2])
                yield self
        finally:
            self.may_generate.set()
            self.batcher.close()

    def client(self):
        # By default a connection has 5 s, which 60 at a time may not keep on a busy machine.
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)

    def send(self, content):
        """Send a request whose response is not read yet."""
        body = {"model": "center", "max_tokens": 8, "temperature": 0}
        body["messages"] = [{"role": "user", "content": content}]
        data = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        return connection

    def wait_for_rows(self, count):
        deadline = time.monotonic() + HANG_S
        while self.batcher.rows != count:
            assert time.monotonic() < deadline, self.batcher.rows
            time.sleep(0.01)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("load") / "run", "generations=2")


def test_clients_that_disconnect_abruptly_leave_no_row(trained):
    with Served(trained).running() as served, served.client() as client:
        served.may_generate.clear()
        held = served.send("held")
        assert served.is_generating.wait(HANG_S)
        abrupt = [served.send(f"text {number}") for number in range(50)]
        served.wait_for_rows(51)
        for connection in abrupt:
            # With this, closing sends a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        served.wait_for_rows(1)
        served.may_generate.set()
        assert b"200 OK" in held.recv(100)
        held.close()
        served.wait_for_rows(0)
        with ThreadPoolExecutor(60) as threads:
            assert all(threads.map(lambda _: text_of(chat(client, "hi", max_tokens=4)), range(60)))
