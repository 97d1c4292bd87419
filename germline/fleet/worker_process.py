"""The engine process: loads an engine, then does one job after another.

`germline.fleet.engine_processes` starts it as `python -m germline.fleet.worker_process FD`. A
thread reads from the parent all the time: when the connection is closed, because the parent closed
it or died, the process ends at once, also in the middle of a job.
"""

import os
import pickle
import queue
import signal
import sys
import threading
from functools import partial
from multiprocessing.connection import Connection

from germline.fleet.remote_engine import run_and_catch
from germline.protocols import Engine


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
    while True:
        message = inbox.get()  # the parent sends no job to an engine that failed to load
        parent.send(run_and_catch(partial(_do, message, engine)))


def _do(message: bytes, engine: Engine | None) -> object:
    return pickle.loads(message)(engine)


def _listen(parent: Connection, inbox: "queue.SimpleQueue[bytes]") -> None:
    while True:
        try:
            inbox.put(parent.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # the main thread may be deep in a computation


if __name__ == "__main__":
    main(int(sys.argv[1]))
