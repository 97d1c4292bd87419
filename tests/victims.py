"""Trainings in processes of their own, to be killed at any moment.

They are forked from a server that has imported everything, so that a start costs milliseconds and
twenty kills fit into a test.
"""

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from germline.config import Config

# Set up before the server starts: it forks children with whatever it has loaded by then.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["germline.run", "germline.engines.inprocess", "tests.victims"])


def _work(config: Config, out: Path, told: Connection, writes: int | None) -> None:
    """Begin the run or continue it, and tell every generation that is on disk.

    A generation starts when the test has read the message of the one before: however busy the
    machine is, the run is not over before the test gets to kill it.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    from germline.run import resume, train

    training = resume(out) if (out / "run.json").exists() else train(config, out)
    told.send("ready")
    if writes is not None:
        _die_after(writes, out)
    for record in training:
        told.send(record.generation)
        if writes is None:
            told.recv()
    told.send("done")


def _die_after(writes: int, out: Path) -> None:
    """Kill this process before its next write but so many: to open, rename or remove a file.

    From outside such moments are hard to hit: between two files of one generation lie
    microseconds.
    """
    left = iter(range(writes))

    def before(event: str, arguments: tuple[object, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove"):
            return
        reads = event == "open" and arguments[1] in ("r", "rb", None)
        if not reads and str(arguments[0]).startswith(str(out)) and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(before)


class Victim:
    """One training process; with `writes`, one that is killed after so many more of them."""

    def __init__(self, config: Config, out: Path, writes: int | None = None) -> None:
        self._told, theirs = _SERVER.Pipe()
        self._process = _SERVER.Process(target=_work, args=(config, out, theirs, writes))
        self._process.start()
        theirs.close()

    def wait_for(self, messages: int) -> float:
        """Wait for so many messages, `ready` and generations; return the seconds of the last."""
        before = time.monotonic()
        last = 0.0
        for _ in range(messages):
            assert self._next() != "done", "the run was over before its kill: lengthen it"
            last, before = time.monotonic() - before, time.monotonic()
        return last

    def _next(self) -> object:
        message = self._told.recv()
        if isinstance(message, int):
            self._told.send("go on")
        return message

    def kill(self) -> None:
        """Send SIGKILL; nothing in the process hears of it."""
        self._process.kill()
        self.wait_for_death()

    def wait_for_death(self) -> None:
        """Wait for the kill, which must have met it alive."""
        self._process.join()
        assert self._process.exitcode == -9, "it was over before it was killed"
        self._told.close()

    def finish(self) -> None:
        """Let it run to its end."""
        while self._next() != "done":
            pass
        self._process.join()
        assert self._process.exitcode == 0
        self._told.close()
