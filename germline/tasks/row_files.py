"""Rows of JSON and CSV files, with their places for errors; fields of rows.

These files are read here and not by the library `datasets`, which infers types from the text: in a
CSV file it turns `02134` into 2134, and `NA` into a missing value.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from germline.types import GermlineError

Wanted = TypeVar("Wanted")

TEXT_FILES = (".jsonl", ".json", ".csv")
"""Endings of the files that are read here."""

LONGEST_SHOWN = 200
"""Characters of a wrong value that an error shows."""

LONGEST_CELL = 1 << 30

PlacedRow = tuple[str, Mapping[str, Any]]
"""(`file, line 3`, the row)."""


def read_rows(path: Path, setting: str) -> list[PlacedRow]:
    """Read the rows of a file: JSON lines, a JSON list of objects, or CSV with a line of names.

    Every cell of a CSV file is its text; an empty one is a missing field. Errors name the setting.
    """
    try:
        text = path.expanduser().read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise GermlineError(
            f"{setting}: there is no file {str(path)!r} (relative paths start at {Path.cwd()})"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise GermlineError(f"{setting}: {path} cannot be read as UTF-8 text: {error}") from None
    rows: list[tuple[str, Any]]
    if path.suffix == ".csv":
        rows = list(_csv_rows(text, path))
    elif path.suffix == ".json" and text.lstrip().startswith("["):
        rows = [(f"{path}, row {n}", row) for n, row in enumerate(_parsed(text, str(path)))]
    else:
        # Not splitlines(): JSON text may hold U+2028 and other characters it would cut at.
        lines = enumerate(text.split("\n"), start=1)
        places = [(f"{path}, line {number}", line) for number, line in lines if line.strip()]
        rows = [(place, _parsed(line, place)) for place, line in places]
    if not rows:
        raise GermlineError(f"{setting}: {path}: the file holds no rows; add at least one example")
    for place, row in rows:
        if not isinstance(row, dict):
            raise GermlineError(
                f"{place}: a row must be a JSON object, found {shown(row)} ({type(row).__name__})"
            )
    return rows


def row_field(row: Mapping[str, Any], field: str, kind: type[Wanted], place: str) -> Wanted:
    """Return a field of a row; `a.b` is the field `b` of the field `a`."""
    if not has_field(row, field):
        raise GermlineError(f"{place}: the field `{field}` is missing; {fields_found(row)}")
    value = field_value(row, field)
    if not isinstance(value, kind):
        raise GermlineError(
            f"{place}: the field `{field}` must be {kind.__name__}, found {shown(value)} "
            f"({type(value).__name__})"
        )
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise GermlineError(f"{place}: the field `{field}` is not Unicode text: {shown(value)}")
    return value


def has_field(row: Mapping[str, Any], field: str) -> bool:
    """Tell whether a row has a value for a field; null is none."""
    return field_value(row, field) is not None


def field_value(row: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, also of a field inside another one (`a.b`); None without."""
    if field in row:
        return row[field]
    outer, dot, inner = field.partition(".")
    value = row.get(outer) if dot else None
    return field_value(value, inner) if isinstance(value, Mapping) else None


def fields_found(row: Mapping[str, Any]) -> str:
    """List the fields of a row for an error; those inside a mapping by their dotted names."""
    names: list[str] = []
    for name, value in row.items():
        inner = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        names += [f"{name}.{key}" for key in value] if inner and value else [name]
    return f"fields found: {', '.join(f'`{name}`' for name in names) or 'none'}"


def shown(value: object) -> str:
    """Return a wrong value of a row as an error shows it."""
    return repr(value)[:LONGEST_SHOWN]


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GermlineError(
            f"{place}: not valid JSON: {error}; a file of rows has one JSON object per line, or, "
            "where its name ends in .json, one list of objects"
        ) from None


def _csv_rows(text: str, path: Path) -> Iterator[PlacedRow]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or ()
        if len(set(names)) < len(names):
            raise GermlineError(f"{path}: two columns have the same name, found {names}")
        for cells in reader:
            place = f"{path}, line {reader.line_num}"
            if None in cells or None in cells.values():
                raise GermlineError(
                    f"{place}: there must be {len(names)} cells, as line 1 names as many columns; "
                    "a cell with a comma or a line break stands in double quotes"
                )
            yield place, {name: cell for name, cell in cells.items() if cell}
    except csv.Error as error:
        place = f"{path}, line {reader.reader.line_num}"
        raise GermlineError(f"{place}: not valid CSV: {error}") from None


def placed_rows(rows: Iterable[Any], name: str) -> list[PlacedRow]:
    """Return the rows of a list of Python, each a mapping, with their places in what is named."""
    placed: list[PlacedRow] = []
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(field, str) for field in row):
            raise GermlineError(
                f"{name} row {index}: a row must be a mapping from field names to values, such as "
                f"{{'prompt': ..., 'answer': ...}}, found {shown(row)}"
            )
        placed.append((f"{name} row {index}", dict(row)))
    return placed
