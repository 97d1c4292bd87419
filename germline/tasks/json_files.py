"""Read JSON files of tasks; an error names the file, the row and a remedy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from germline.types import GermlineError

Wanted = TypeVar("Wanted")
LONGEST_SHOWN = 200
"""Characters of a wrong value that an error shows."""

PlacedRow = tuple[str, Mapping[str, Any]]
"""(`file, row 3`, the row)."""


def read_json_rows(path: Path, setting: str) -> list[PlacedRow]:
    """Read a JSON list of objects.

    Args:
        path: the file.
        setting: the setting that named it, for errors.

    Raises:
        GermlineError: the file is missing, is not JSON, or holds no rows.
    """
    content = _text(path, setting)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise GermlineError(
            f"{path}: not valid JSON: {error}; {setting} must be a JSON list of rows"
        ) from None
    if not isinstance(rows, list):
        raise GermlineError(
            f"{path}: {setting} must be a JSON list of rows, found {type(rows).__name__}"
        )
    return _objects([(f"{path}, row {index}", row) for index, row in enumerate(rows)], path)


def read_json_lines(path: Path, setting: str) -> list[PlacedRow]:
    """Read one JSON object per line; empty lines are skipped.

    Args:
        path: the file.
        setting: the setting that named it, for errors.

    Raises:
        GermlineError: the file is missing, a line is not JSON, or there are no rows.
    """
    rows: list[tuple[str, object]] = []
    # Not splitlines(): JSON text may hold U+2028 and other characters it would cut at.
    for number, line in enumerate(_text(path, setting).split("\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                rows.append((place, json.loads(line)))
            except json.JSONDecodeError as error:  # it counts lines of the text that it was given
                raise GermlineError(
                    f"{place}, column {error.colno}: not valid JSON: {error.msg}; every line must "
                    "be one JSON object"
                ) from None
            except (ValueError, RecursionError) as error:
                raise GermlineError(
                    f"{place}: not valid JSON: {error}; every line must be one JSON object"
                ) from None
    return _objects(rows, path)


def row_field(row: Mapping[str, Any], field: str, kind: type[Wanted], place: str) -> Wanted:
    """Return a field of a row.

    Raises:
        GermlineError: the field is missing or of another kind.
    """
    if field not in row:
        found = ", ".join(f"`{name}`" for name in row) or "none"
        raise GermlineError(f"{place}: the field `{field}` is missing; fields found: {found}")
    value = row[field]
    if not isinstance(value, kind):
        raise GermlineError(
            f"{place}: the field `{field}` must be {kind.__name__}, found {shown(value)} "
            f"({type(value).__name__})"
        )
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise GermlineError(f"{place}: the field `{field}` is not Unicode text: {shown(value)}")
    return value


def shown(value: object) -> str:
    """Return a wrong value of a row as an error shows it."""
    return repr(value)[:LONGEST_SHOWN]


def _text(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise GermlineError(
            f"{setting}: there is no file {str(path)!r} (relative paths start at {Path.cwd()})"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise GermlineError(
            f"{setting}: {path} cannot be read as UTF-8 text: {error}; write it as such, or, where "
            "it is of another kind, with the ending of that kind, such as .parquet"
        ) from None


def _objects(rows: list[tuple[str, object]], path: Path) -> list[PlacedRow]:
    if not rows:
        raise GermlineError(f"{path}: the file holds no rows; add at least one example")
    checked: list[PlacedRow] = []
    for place, row in rows:
        if not isinstance(row, dict):
            raise GermlineError(
                f"{place}: a row must be a JSON object, found {shown(row)} ({type(row).__name__})"
            )
        checked.append((place, row))
    return checked
