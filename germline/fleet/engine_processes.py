"""Engines in processes of this machine, seen from their parent: start, send, outcome, stop.

`subprocess` is used instead of `multiprocessing` for the reasons of `germline.graders.pool`; a
process is started afresh, as CUDA does not survive a fork. The output of an engine would tear the
live view, so it goes to a file; its last lines are part of the message when the engine is lost.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.connection import wait as wait_for_any
from typing import IO

from germline.fleet.remote_engine import JobDone, JobRaised, Outcome, RemoteEngine, RemoteEngineLost
from germline.fleet.worker_jobs import EngineJob
from germline.graders.worker_handle import module_search_path
from germline.protocols import Engine
from germline.types import GermlineError

_LAST_LINES = 8


class EngineProcess:
    """One engine in a process of its own.

    Args:
        number: of the engine, for messages.
        load: makes the engine there; picklable.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self,
        number: int,
        load: Callable[[], Engine],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = f"engine {number}"
        self._load = load
        self._environment = dict(environment or {})
        self._popen: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._output: IO[bytes] | None = None

    @property
    def waits_for_resources(self) -> bool:
        """Whether it waits for resources: never, a process runs from its start."""
        return False

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._popen.pid if self._popen is not None else None

    def start(self) -> None:
        """Start the process and let it load the engine.

        Raises:
            GermlineError: the system starts no process.
        """
        self.stop()
        self._connection, theirs = Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        command = [
            sys.executable,
            "-P",
            "-m",
            "germline.fleet.worker_process",
            str(theirs.fileno()),
        ]
        try:
            # A session of its own: Ctrl-C is the parent's to handle.
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={**os.environ, "PYTHONPATH": module_search_path(), **self._environment},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise GermlineError(
                f"fleet: {self.name} cannot start ({' '.join(command)}): {error}"
            ) from error
        finally:
            theirs.close()
        self._send(self._load)

    def send(self, job: EngineJob) -> None:
        """Begin a job; that a process is gone is reported by `outcome`."""
        self._send(job)

    def stop(self) -> None:
        """Kill the process, and close its connection and its file."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
        for one in (self._connection, self._output):
            if one is not None:
                one.close()
        self._popen = self._connection = self._output = None

    def connection(self) -> Connection:
        """Return the connection that becomes readable when there is an outcome."""
        if self._connection is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._connection

    def outcome(self) -> Outcome:
        """Read the outcome of the job; the connection must be readable."""
        try:
            value = self.connection().recv()
        except (EOFError, OSError):
            return RemoteEngineLost(self._end())
        except Exception as error:  # noqa: BLE001 - an invalid pickle can raise any error
            return RemoteEngineLost(f"its result cannot be read: {error}")
        return (
            value
            if isinstance(value, JobDone | JobRaised)
            else RemoteEngineLost(f"it returned {value!r}")
        )

    def _send(self, value: object) -> None:
        with contextlib.suppress(OSError):
            self.connection().send(value)

    def _end(self) -> str:
        """Describe how a process ended whose connection was closed, with its last output."""
        if self._popen is None or self._output is None:
            return "it was stopped"
        self._popen.kill()
        status = self._popen.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self._output.seek(0)
        printed = self._output.read().decode(errors="replace").strip().splitlines()
        words = "\n    ".join(["", *printed[-_LAST_LINES:]]) if printed else ""
        return f"it ended with {how}{words}"


def wait_for_outcome(
    remotes: Sequence[RemoteEngine], timeout: float | None
) -> list[tuple[RemoteEngine, Outcome]]:
    """Wait until one of these processes has an outcome or time is up; return all outcomes."""
    processes = [remote for remote in remotes if isinstance(remote, EngineProcess)]
    ready = wait_for_any([process.connection() for process in processes], timeout)
    return [(one, one.outcome()) for one in processes if one.connection() in ready]
