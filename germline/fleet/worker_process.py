"""The engine process: loads an engine, then does one job after another.

Started by `germline.fleet.engine_processes` as `python -m germline.fleet.worker_process FD`. A
thread listens to
the parent all the time: when the connection ends, because the parent closed it or died, the process
ends at once, in whatever it is doing.
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
    """Serve the parent until it is gone."""
    # The parent decides what Ctrl-C means; a signal sent to all processes by name is no exception.
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
        message = inbox.get()  # nothing comes where nothing was loaded
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
