"""The lock of a run directory, which allows one writer per folder.

It is a POSIX record lock on `.writer.lock`. The operating system releases it when the process ends
in any way, and forked grader workers do not inherit it. Such locks belong to a process, so a set of
locked folders keeps two training runs in one process apart.
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

# `struct flock` of 64-bit Linux and macOS; Python has no function that queries a lock.
if sys.platform == "linux":
    _FLOCK, _TYPE_PLACE = "hhqqi", 0
    _WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
else:
    _FLOCK, _TYPE_PLACE = "qqihh", 3
    _WHOLE_FILE = struct.pack(_FLOCK, 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)


def acquire_lock(folder: Path, owner: object) -> "weakref.finalize[..., object]":
    """Lock a folder until `owner` is garbage collected or the returned finalizer is called.

    Raises:
        GermlineError: another training run writes to this folder.
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
        # Some network file systems have no locks; there, a second writer is not detected.
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(lock)
            raise GermlineError(
                f"{folder}: another process is training in this folder; "
                "stop it first (Ctrl-C, once)"
            ) from None
    _CLAIMED.add(place)
    return weakref.finalize(owner, _let_go, place, lock)


def is_locked(folder: Path) -> bool:
    """Return whether a training run writes to a folder, without acquiring the lock.

    On file systems without locks the result is False.
    """
    # Checked first: closing any descriptor of a file releases all locks of this process on it.
    if folder.resolve() in _CLAIMED:
        return True
    try:
        lock = os.open(_lock_file(folder), os.O_RDONLY)
    except OSError:
        return False
    try:
        holder = fcntl.fcntl(lock, fcntl.F_GETLK, _WHOLE_FILE)
    except OSError:
        return False
    finally:
        os.close(lock)
    return bool(struct.unpack(_FLOCK, holder)[_TYPE_PLACE] != fcntl.F_UNLCK)


def _lock_file(folder: Path) -> Path:
    return folder / ".writer.lock"


def _let_go(place: Path, lock: int) -> None:
    _CLAIMED.discard(place)
    os.close(lock)
