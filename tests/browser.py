"""A headless Chromium, driven over a pipe: pages as a browser sees them, with nothing installed.

The DevTools protocol is JSON, ended by NUL bytes; `--remote-debugging-pipe` reads it from file
descriptor 3 and writes it to 4. That needs neither a port nor a web socket library.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from select import select
from typing import Any

from tests.hang_limit import HANG_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # CI runs as root, where the sandbox refuses to start
    "--disable-dev-shm-usage",  # containers have little shared memory
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)

LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Puts the pipes where Chromium looks for them; a shell may know descriptors of one digit only."""

Message = dict[str, Any]


def find() -> str | None:
    """Return the Chromium of this machine, or of $CHROMIUM."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium with one tab; a context manager that ends it."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_by_it, self._to = _pipe()
        self._from, written_by_it = _pipe()
        ends = (read_by_it, written_by_it)
        profile = f"--user-data-dir={self._profile.name}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, ends), program, *FLAGS, profile],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.events: list[Message] = []
        try:
            self._open_tab()
        except BaseException:
            self.close()
            raise

    def _open_tab(self) -> None:
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End Chromium; its children end with it."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Send one command and return its result; events that arrive meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, page: Path, width: int, scheme: str = "light", media: str = "") -> None:
        """Show a page as on a screen so wide, in a light or dark scheme, and forget old events."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 640,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def ask(self, expression: str) -> Any:
        """Return what a JavaScript expression is on this page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Return when a JavaScript expression has become true on this page."""
        poll = f"() => ({expression}) ? done() : setTimeout(look, 50)"
        promise = f"new Promise(done => {{ const look = {poll}; look(); }})"
        self.call("Runtime.evaluate", expression=promise, awaitPromise=True)

    def complaints(self) -> list[Message]:
        """Return what the page has written to the console, and its uncaught errors."""
        self.ask("1")  # whatever was on its way has arrived when this is answered
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Return the addresses the page has asked for, itself included."""
        self.ask("1")
        sent = "Network.requestWillBeSent"
        found = [event["params"] for event in self.events if event["method"] == sent]
        return [one["request"]["url"] for one in found]

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _receive(self) -> Message:
        deadline = time.monotonic() + HANG_S
        while b"\0" not in self._rest:
            ready, _, _ = select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._from, 1 << 16) if ready else b""
            if not piece:
                raise RuntimeError(f"Chromium said nothing for {HANG_S} s, or ended")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def _pipe() -> tuple[int, int]:
    """Open a pipe whose ends keep clear of descriptors 3 and 4."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
