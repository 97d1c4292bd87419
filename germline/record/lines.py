"""Files that survive a kill: JSON lines in and out, and atomic replacement.

Rows are appended with a single write, so a killed process leaves at most one torn line, and that at
the end. Files are cut at newline bytes only: text written by a model may hold any other line
separator.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from germline.types import GermlineError

Row = dict[str, Any]


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old content or the new one, never a mixture."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


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
        with path.open("ab", buffering=0) as file:
            file.write(data)


def read_rows(path: Path) -> list[Row]:
    """Read every row; a file that does not exist has none, a torn last line is left out.

    Raises:
        GermlineError: a complete line is not a JSON object.
    """
    return [_decode(path, number, line) for number, line in enumerate(complete_lines(path), 1)]


def keep_rows(path: Path, wanted: Callable[[Row], bool]) -> None:
    """Drop unwanted rows and a torn last line, in one atomic step; a clean file is not touched."""
    if not path.exists():
        return
    lines = complete_lines(path)
    kept = [line for number, line in enumerate(lines, 1) if wanted(_decode(path, number, line))]
    data = b"".join(line + b"\n" for line in kept)
    if len(data) != path.stat().st_size:
        write_atomically(path, data)


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines that end in a newline, without it."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


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


def _decode(path: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise GermlineError(
            f"{path}, line {number}: damaged, found {line[:40]!r} instead of a JSON object; delete "
            "that line (it only describes the run: the journal and the weights do not need it)"
        )
    return row
