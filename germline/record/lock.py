"""One writer per folder: a claim on a run directory, and whether somebody holds one.

A claim is a POSIX record lock on `.writer.lock`: it ends with the process, however that dies, and
forked grader workers do not inherit it. Such locks belong to processes, so two trainings in one
process are kept apart by a list of their own.
"""

import errno
import fcntl
import os
import struct
import sys
import weakref
from pathlib import Path

from germline.record.atomic_files import explain_write_errors
from germline.types import GermlineError

_CLAIMED: set[Path] = set()
"""Folders this process writes to."""

# `struct flock` as 64-bit Linux and macOS lay it out; Python has no nicer way to ask for a lock.
if sys.platform == "linux":
    _FLOCK, _TYPE_PLACE = "hhqqi", 0
    _WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
else:
    _FLOCK, _TYPE_PLACE = "qqihh", 3
    _WHOLE_FILE = struct.pack(_FLOCK, 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)


def acquire_lock(folder: Path, owner: object) -> "weakref.finalize[..., object]":
    """Become the only writer of a folder until `owner` is gone, or the result is called.

    Raises:
        GermlineError: somebody is training in this folder.
    """
    place = folder.resolve()
    if place in _CLAIMED:
        raise GermlineError(
            f"{folder}: this process is training in this folder already; "
            "finish that training, or drop it, first"
        )
    with explain_write_errors(folder):
        lock = os.open(_lock_file(folder), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks; a run there is as safe as its user is careful.
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(lock)
            raise GermlineError(
                f"{folder}: another process is training in this folder; "
                "stop it first (Ctrl-C, once)"
            ) from None
    _CLAIMED.add(place)
    return weakref.finalize(owner, _let_go, place, lock)


def is_locked(folder: Path) -> bool:
    """Ask whether somebody is writing to a folder, without taking the lock even for a moment.

    Where a file system has no locks, the answer is no.
    """
    # Asked first: closing any descriptor of a file drops all locks this process has on it.
    if folder.resolve() in _CLAIMED:
        return True
    try:
        lock = os.open(_lock_file(folder), os.O_RDONLY)
    except OSError:
        return False
    try:
        found = fcntl.fcntl(lock, fcntl.F_GETLK, _WHOLE_FILE)
    except OSError:
        return False
    finally:
        os.close(lock)
    return bool(struct.unpack(_FLOCK, found)[_TYPE_PLACE] != fcntl.F_UNLCK)


def _lock_file(folder: Path) -> Path:
    return folder / ".writer.lock"


def _let_go(place: Path, lock: int) -> None:
    _CLAIMED.discard(place)
    os.close(lock)
