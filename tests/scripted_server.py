"""A small HTTP server that answers what a test tells it to, and remembers what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""Status and body: text as it is, anything else as JSON."""


@dataclass
class Scripted:
    """What is listening.

    Attributes:
        reply: makes the answer to a path and the body that was sent there.
        asked: every request so far.
    """

    reply: Callable[[str, Any], Reply]
    url: str = ""
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def bodies(self, path: str) -> list[Any]:
        """Return what was sent to a path."""
        return [body for one, body in self.asked if one == path]


@contextmanager
def listening(reply: Callable[[str, Any], Reply]) -> Iterator[Scripted]:
    """Listen on a free port of this machine."""
    script = Scripted(reply)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or "null")
            script.asked.append((self.path, body))
            status, said = script.reply(self.path, body)
            content = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(abs(status))
            # A negative status hangs up in the middle of the answer.
            self.send_header("Content-Length", str(len(content) + (100 if status < 0 else 0)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Let those who did not wait for an answer go in silence."""

    server = Server(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def vowels(_path: str, body: Any) -> Reply:
    """Reward the vowels of responses, as the service of `germline serve --reward` is asked."""
    return 200, {"rewards": [sum(one in "aeiou" for one in text) for text in body["responses"]]}
