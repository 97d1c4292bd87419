"""Engines in processes of this machine: `EngineProcess` in the run, `main` in the process.

A process is started afresh, as CUDA does not survive a fork. The output of an engine would tear the
live view, so it goes to a file; its last lines are part of the message when the engine is lost.

The process is `python -m germline.fleet.engine_processes FD`: it loads an engine, then does one job
after another. A thread reads from the parent all the time: when the connection is closed, because
the parent closed it or died, the process ends at once, also in the middle of a job.
"""

import contextlib
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from typing import IO

from germline.fleet.worker_jobs import (
    EngineJob,
    JobDone,
    JobRaised,
    Outcome,
    RemoteEngine,
    RemoteEngineLost,
    run_and_catch,
)
from germline.graders.child_process import ChildProcess
from germline.protocols import Engine

_LAST_LINES = 8


class EngineProcess:
    """One engine in a process of its own, which never waits for resources.

    `load` makes the engine there and is pickled.
    """

    waits_for_resources = False

    def __init__(self, number: int, load: Callable[[], Engine]) -> None:
        self.name = f"engine {number}"
        self._load = load
        self._process: ChildProcess | None = None
        self._output: IO[bytes] | None = None

    def start(self) -> None:
        """Start the process and let it load the engine."""
        self.stop()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = ChildProcess(__name__, os.environ, self._output)
        self.send(self._load)

    def send(self, job: EngineJob | Callable[[], Engine]) -> None:
        """Begin a job; that a process is gone is reported by `outcome`."""
        with contextlib.suppress(EOFError):
            self.process().send(job)

    def stop(self) -> None:
        """Kill the process, and close its connection and its file."""
        for opened in (self._process, self._output):
            if opened is not None:
                opened.close()
        self._process = self._output = None

    def process(self) -> ChildProcess:
        """Return the process, whose connection becomes readable when there is an outcome."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def outcome(self) -> Outcome:
        """Read the outcome of the job; the connection must be readable."""
        try:
            value = self.process().read(0)
        except EOFError:
            return RemoteEngineLost(self._end())
        except Exception as error:  # noqa: BLE001 - an invalid pickle can raise any error
            return RemoteEngineLost(f"its result cannot be read: {error}")
        assert isinstance(value, JobDone | JobRaised)
        return value

    def _end(self) -> str:
        """Describe how a process ended whose connection was closed, with its last output."""
        if self._output is None:
            return "it was stopped"
        how = self.process().exit_reason()
        self._output.seek(0)
        printed = self._output.read().decode(errors="replace").strip().splitlines()
        words = "\n    ".join(["", *printed[-_LAST_LINES:]]) if printed else ""
        return f"it ended with {how}{words}"


def wait_for_outcome(
    remotes: Sequence[RemoteEngine], timeout: float | None
) -> list[tuple[RemoteEngine, Outcome]]:
    """Wait until one of these processes has an outcome or time is up; return all outcomes."""
    processes = [remote for remote in remotes if isinstance(remote, EngineProcess)]
    connections = [process.process().connection for process in processes]
    ready = wait_for_any(connections, timeout)
    waiting = zip(processes, connections, strict=True)
    return [(process, process.outcome()) for process, connection in waiting if connection in ready]


def main(descriptor: int) -> None:
    """Do the jobs of the parent until the connection is closed."""
    # The parent handles Ctrl-C, also where the signal is sent to all processes of a name.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Connection(descriptor)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parent, inbox), daemon=True).start()
    engine: Engine | None = None

    def load() -> str:
        nonlocal engine
        engine = pickle.loads(inbox.get())()
        return engine.weights.digest()

    parent.send(run_and_catch(load))
    while True:  # the parent sends no job to an engine that failed to load
        parent.send(run_and_catch(lambda: pickle.loads(inbox.get())(engine)))


def _listen(parent: Connection, inbox: "queue.SimpleQueue[bytes]") -> None:
    while True:
        try:
            inbox.put(parent.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # the main thread may be deep in a computation


if __name__ == "__main__":
    main(int(sys.argv[1]))
