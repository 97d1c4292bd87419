"""Files that survive a kill or a full disk: JSON lines, and atomic replacement of files.

Rows are appended with a single write, so a killed process leaves at most one incomplete line, at
the end of the file; a full disk leaves none. Files are split at newline bytes only, because a
model's completion may contain any other line separator.
"""

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError

from germline.types import GermlineError

Row = dict[str, Any]
Read = TypeVar("Read")


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Replace an operating system's error by one that names the file."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or error
        # An error of safetensors has the text of the operating system, but no number.
        is_full = any(os.strerror(one) in str(error) for one in (errno.ENOSPC, errno.EDQUOT))
        raise GermlineError(
            f"{path} cannot be written: {said}; {'make room there, or ' if is_full else ''}choose "
            "another place (--out). A run that had begun goes on with `germline resume`: nothing "
            "that was recorded is lost"
        ) from error


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Check, before a long computation, that a file or folder can be created."""
    parents = path.absolute().parents
    place = next(existing for existing in (path, *parents) if existing.exists())
    why = ""
    if not place.is_dir() and (folder or place != path):
        why = "is a file"
    elif not os.access(place, os.W_OK | (os.R_OK | os.X_OK if place.is_dir() else 0)):
        why = "may not be written to"
    if why:
        raise GermlineError(
            f"out: {path} cannot be made, as {place} {why}; choose another place (--out)"
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content, also after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with atomic_replace(path, temporary):
        temporary.write_bytes(data)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document atomically; numbers that are not finite become null."""
    text = json.dumps(plain(document), indent=2, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def read_json(path: Path) -> Row:
    """Read a JSON document."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise GermlineError(f"{path} is damaged ({error}); restore it from a copy") from None


@contextmanager
def atomic_replace(path: Path, temporary: Path) -> Iterator[None]:
    """Replace a file by a temporary file that the `with` block writes, once it is on disk."""
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
    """Append all of the data to a file or, if that fails as on a full disk, nothing.

    Raises:
        GermlineError: it cannot be written.
    """
    with explain_write_errors(path), path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            # If the disk becomes full, a call writes the part that fits and returns its size;
            # only the next call fails.
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
    """Make new names in a folder durable: a rename is stored in the folder, not in the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows with one write.

    The rows are not synced to disk, because only the journal is needed to continue a run. A power
    cut may lose the last few rows.
    """
    data = b"".join(_encode(row) for row in rows)
    if data:
        append_durably(path, data)


def read_rows(path: Path) -> list[Row]:
    """Read every row; a missing file has none, and an incomplete last line is left out."""
    return read_each(path, lambda row: row)


def read_each(
    path: Path,
    read: Callable[[Row], Read],
    remedy: str = "delete that line (it only describes the run: the journal and the weights do not "
    "need it)",
) -> list[Read]:
    """Read every row and convert it with a function; an error ends with the remedy."""
    rows = []
    for number, line in enumerate(complete_lines(path), 1):
        try:
            rows.append(read(_decode(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise GermlineError(
                f"{path}, line {number}: damaged, found {line[:40]!r} instead of a row of this "
                f"file; {remedy}"
            ) from None
    return rows


def keep_rows(path: Path, wanted: Callable[[Row], bool]) -> None:
    """Drop unwanted rows and an incomplete last line atomically; other files are not rewritten."""
    if not path.exists():
        return
    keep = read_each(path, wanted)
    lines = zip(complete_lines(path), keep, strict=True)
    data = b"".join(line + b"\n" for line, wanted_here in lines if wanted_here)
    if len(data) != path.stat().st_size:
        write_atomically(path, data)


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines that end in a newline, without it; a missing file has none."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise GermlineError(f"{path} cannot be read: {error.strerror or error}") from error


def _encode(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(plain(row), ensure_ascii=False, allow_nan=False)
    # A lone surrogate has no UTF-8 form, but its backslash form happens to be its JSON escape.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def plain(value: object) -> object:
    """Convert numpy numbers to Python's, and NaN and infinity to None: JSON has neither."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _decode(line: bytes) -> Row:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise TypeError("a row is a JSON object")
    return row
