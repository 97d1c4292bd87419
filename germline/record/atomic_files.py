"""Files that survive a kill or a full disk: JSON lines in and out, and atomic replacement.

Rows are appended with a single write, so a killed process leaves at most one torn line, and that at
the end; a disk that fills up leaves none. Files are cut at newline bytes only: text written by a
model may hold any other line separator.
"""

import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError

from germline.types import GermlineError

Row = dict[str, Any]
Read = TypeVar("Read")


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Say what a person can do where a file or folder cannot be written.

    Raises:
        GermlineError: instead of the operating system's error.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number, said = _system_error(error)
        remedy = ""
        if number in FULL:
            remedy = (
                "; make room. A run that had begun goes on with `germline resume`: nothing "
                "that was recorded is lost"
            )
        elif number in FORBIDDEN:
            remedy = "; get the right to write there, or choose another folder"
        raise GermlineError(f"{path} cannot be written: {said}{remedy}") from error


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Say before the work is done that a file or folder could not be made afterwards.

    Args:
        path: to be made, or to be written again.
        folder: whether it must be a folder.

    Raises:
        GermlineError: a file stands where a folder should, or writing is not allowed.
    """
    place = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not place.is_dir() and (folder or place != path):
        raise GermlineError(
            f"out: {path} cannot be made, as {place} is a file; choose a new or an empty folder "
            "(--out)"
        )
    if not os.access(place, os.W_OK | (os.R_OK | os.X_OK if place.is_dir() else 0)):
        raise GermlineError(
            f"out: {path} cannot be made, as {place} may not be written to; choose another place "
            "(--out)"
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old content or the new one, never a mixture.

    Raises:
        GermlineError: it cannot be written; the old content stands, and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with atomic_replace(path, temporary):
        temporary.write_bytes(data)


@contextmanager
def atomic_replace(path: Path, temporary: Path) -> Iterator[None]:
    """Put a temporary file, written in a `with` block, safely on disk and in a file's place.

    Raises:
        GermlineError: it cannot be written; the old content stands, and nothing is left behind.
    """
    with explain_write_errors(path):
        try:
            yield
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def append_durably(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Append to a file all of the data or, as on a full disk, nothing.

    Args:
        path: the file; made where there is none.
        data: what to append.
        sync: wait until it is safe on disk.

    Raises:
        GermlineError: it cannot be written.
    """
    with explain_write_errors(path), path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            # One call that fits writes it all; on a disk that fills up it writes what fits,
            # says how much that was, and only the next one fails.
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            if sync:
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.ftruncate(file.fileno(), size)
            raise


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable: a rename lives in the folder, not in the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows with one write.

    Not synced to disk: rows describe, the journal decides. A power cut may cost the last few rows,
    never a run.
    """
    data = b"".join(_encode(row) for row in rows)
    if data:
        append_durably(path, data)


def read_rows(path: Path) -> list[Row]:
    """Read every row; a file that does not exist has none, a torn last line is left out.

    Raises:
        GermlineError: a complete line is not a JSON object.
    """
    return read_each(path, lambda row: row)


def read_each(path: Path, read: Callable[[Row], Read]) -> list[Read]:
    """Read every row as what a function makes of it.

    Raises:
        GermlineError: a complete line is not a JSON object, or not one the function can read.
    """
    found = []
    for number, line in enumerate(complete_lines(path), 1):
        try:
            found.append(read(_decode(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise GermlineError(
                f"{path}, line {number}: damaged, found {line[:40]!r} instead of a row of this "
                "file; delete that line (it only describes the run: the journal and the weights "
                "do not need it)"
            ) from None
    return found


def keep_rows(path: Path, wanted: Callable[[Row], bool]) -> None:
    """Drop unwanted rows and a torn last line, in one atomic step; a clean file is not touched."""
    if not path.exists():
        return
    keep = read_each(path, wanted)
    lines = zip(complete_lines(path), keep, strict=True)
    data = b"".join(line + b"\n" for line, wanted_here in lines if wanted_here)
    if len(data) != path.stat().st_size:
        write_atomically(path, data)


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines that end in a newline, without it.

    Raises:
        GermlineError: there is such a file, but it cannot be read.
    """
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise GermlineError(f"{path} cannot be read: {error.strerror or error}") from error


def _system_error(error: Exception) -> tuple[int | None, str]:
    """Return number and words of what the operating system said."""
    if isinstance(error, OSError):
        return error.errno, error.strerror or str(error)
    # The library tells it in words only.
    found = re.search(r"os error (\d+)", str(error))
    return (int(found[1]), os.strerror(int(found[1]))) if found else (None, str(error))


def _encode(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(_plain(row), ensure_ascii=False, allow_nan=False)
    # A lone surrogate has no UTF-8 form, but its backslash form happens to be its JSON escape.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _plain(value: object) -> object:
    """Make numpy numbers Python's, and what is not finite null: JSON has no word for NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _decode(line: bytes) -> Row:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise TypeError("a row is a JSON object")
    return row
