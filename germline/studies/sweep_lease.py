"""The lease of a trial: which process trains it, and whether that process is alive.

A process that is killed cannot return its trial. On the same machine its lease ends with the
process; on another one, when its heartbeat, the time of the file, is older than `STALE_S`. Leases
are taken while the lock of the sweep is held.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil

from germline.record.atomic_files import write_json

LEASE_FILE = "lease.json"
BEAT_S, STALE_S = 10.0, 60.0
"""Seconds between heartbeats, and after which a process on another machine counts as dead."""


def take_lease(folder: Path) -> None:
    """Lease a trial to this process."""
    write_json(folder / LEASE_FILE, _this_process())


def is_leased(folder: Path) -> bool:
    """Return whether a process that is alive trains a trial."""
    file = folder / LEASE_FILE
    try:
        holder, beat = json.loads(file.read_bytes()), file.stat().st_mtime
    except (OSError, ValueError):
        return False
    if holder.get("host") != socket.gethostname():
        return time.time() - beat < STALE_S
    try:
        return psutil.Process(holder["pid"]).create_time() == holder["began"]
    except psutil.Error:
        return False


def leases_of(sweep: Path) -> dict[Path, float]:
    """Return the time of the last heartbeat of each trial and test that is leased."""
    beats = {}
    for file in sweep.glob(f"*/*/{LEASE_FILE}"):
        with suppress(OSError):  # it was returned
            if is_leased(file.parent):
                beats[file.parent] = file.stat().st_mtime
    return beats


@contextmanager
def kept_lease(folder: Path) -> Iterator[None]:
    """Keep a lease that was taken alive, and return it at the end."""
    ended = Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            with suppress(OSError):
                os.utime(folder / LEASE_FILE)

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            (folder / LEASE_FILE).unlink()


def _this_process() -> dict[str, object]:
    process = psutil.Process()
    return {
        "host": socket.gethostname(),
        "pid": process.pid,
        "began": process.create_time(),
    }
