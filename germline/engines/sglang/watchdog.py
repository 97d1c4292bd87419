"""Runs a server, and ends it when whoever asked for it is gone.

    python watchdog.py COMMAND ...

Its standard input is a pipe that the run holds open. However the run ends, killed in an instant
included, the pipe closes with it; then the server and all its processes are ended. A script of the
standard library alone, as it is run by path, before any package is looked for.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 5.0
"""How long a server may take to end by itself."""
GLANCE_S = 0.5


def main(command: list[str]) -> int:
    """Run the command until it ends or standard input does, and return its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while server.poll() is None:
            readable, _, _ = select.select([0], [], [], GLANCE_S)
            if readable and not os.read(0, 1):
                break
    finally:
        terminate(server)
    status = server.returncode
    return status if status >= 0 else 128 - status  # as a shell counts signals


def terminate(server: "subprocess.Popen[bytes]") -> None:
    """End a process and all it started: asked first, then killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    waited = time.monotonic() + GRACE_S
    while server.poll() is None and time.monotonic() < waited:
        time.sleep(GLANCE_S / 10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
