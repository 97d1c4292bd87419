"""The engine process: loads an engine, then does one job after another.

Started by `germline.fleet.processes` as `python -m germline.fleet.worker FD`. A thread listens to
the parent all the time: when the connection ends, because the parent closed it or died, the process
ends at once, in whatever it is doing.
"""

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from germline.fleet.crew import Done, EngineFault, Raised
from germline.types import GermlineError


def main(descriptor: int) -> None:
    """Serve the parent until it is gone."""
    # The parent decides what Ctrl-C means; a signal sent to all processes by name is no exception.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Connection(descriptor)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parent, inbox), daemon=True).start()
    try:
        engine = pickle.loads(inbox.get())()
        digest = engine.weights.digest()
    except Exception as error:  # noqa: BLE001 - loading a model can raise anything
        parent.send(Raised(_sendable(error)))
        inbox.get()  # nothing comes: the listener ends this process with the connection
        return
    parent.send(Done(digest))
    while True:
        parent.send(_do(inbox.get(), engine))


def _listen(parent: Connection, inbox: "queue.SimpleQueue[bytes]") -> None:
    while True:
        try:
            inbox.put(parent.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # the main thread may be deep in a computation


def _do(message: bytes, engine: Any) -> Done | Raised:
    try:
        return Done(pickle.loads(message)(engine))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        return Raised(_sendable(error))


def _sendable(error: Exception) -> Exception:
    """Return an error that can be read on the other side, whatever it holds on this one."""
    if isinstance(error, GermlineError):
        return GermlineError(str(error))
    return EngineFault("an engine process raised\n" + traceback.format_exc())


if __name__ == "__main__":
    main(int(sys.argv[1]))
