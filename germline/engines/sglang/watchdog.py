"""Runs a server, and ends it when the run that started it is gone.

    python watchdog.py COMMAND ...

Standard input is a pipe that the run holds open. When the run ends, also by SIGKILL, the pipe
closes, and the watchdog ends the server and all its processes. The script imports the standard
library only, because it is run by path (`python -I`), without installed packages.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 5.0
"""How long a server may take to end after SIGTERM."""
POLL_S = 0.5


def main(command: list[str]) -> int:
    """Run the command until it ends or standard input does, and return its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while server.poll() is None:
            readable, _, _ = select.select([0], [], [], POLL_S)
            if readable and not os.read(0, 1):
                break
    finally:
        terminate(server)
    status = server.returncode
    return status if status >= 0 else 128 - status  # as a shell counts signals


def terminate(server: "subprocess.Popen[bytes]") -> None:
    """End a process and its process group: first with SIGTERM, then with SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S / 10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
