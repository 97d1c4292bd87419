"""A module of germline that runs in a Python process of its own, at the other end of a connection.

`subprocess` is used instead of `multiprocessing` for the reasons of `germline.graders.pool`.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import IO

from germline.errors import GermlineError


class ChildProcess:
    """The process `python -m MODULE FD`, where FD is the descriptor of its connection.

    It has a session of its own: Ctrl-C reaches the parent only, and processes that it starts are
    killed with it. What it prints goes to `output`, by default to standard error.
    """

    def __init__(
        self, module: str, environment: Mapping[str, str], output: int | IO[bytes] = 2
    ) -> None:
        self.connection, theirs = Pipe()
        command = [sys.executable, "-P", "-m", module, str(theirs.fileno())]
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**environment, "PYTHONPATH": module_search_path()},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                self.connection.close()
                raise GermlineError(
                    f"a worker process cannot start ({' '.join(command)}): {error}"
                ) from error

    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._popen.returncode is None and self._ended(0) is None

    def send(self, value: object) -> None:
        """Send one value; raises EOFError when the process has ended."""
        try:
            self.connection.send(value)
        except OSError:
            raise EOFError from None

    def read(self, timeout_s: float) -> object | None:
        """Return the next value or None; raises EOFError when the process has ended."""
        try:
            return self.connection.recv() if self.connection.poll(timeout_s) else None
        except OSError:  # it ended in the middle of a value
            raise EOFError from None

    def kill(self) -> None:
        """End the process and those that it started."""
        if self.runs():
            self._kill_group()
            self._popen.wait()

    def exit_reason(self) -> str:
        """Wait for a process whose connection is closed, and describe how it ended."""
        status = self._popen.returncode if not self.runs() else self._ended(1.0)
        if status is None:
            self.kill()
            return "a closed connection"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def close(self) -> None:
        """End the process and close its connection."""
        self.kill()
        self.connection.close()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _ended(self, timeout_s: float) -> int | None:
        """Return the exit status; processes that an ended one started end with it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._popen.wait(timeout_s)
            self._kill_group()
            return status
        return None


def module_search_path() -> str:
    """Return this process's module search path, so that a child finds the same modules."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
