"""Rows of a file, a folder or the Hugging Face hub, with their places for errors; fields of rows.

JSON and CSV files are read here and not by the library `datasets`, which infers types from the
text: in a CSV file it turns `02134` into 2134, and `NA` into a missing value. `datasets` reads
everything else; of CSV files in a folder or on the hub, every cell is its text as well. Only this
module imports it.
"""

import csv
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from germline.config.row_tasks import DatasetSource, FileTask
from germline.errors import GermlineError, shown

Wanted = TypeVar("Wanted")

CELLS = {".csv": ",", ".tsv": "\t"}
"""Ending of a file of cells -> what separates them."""

TEXT_FILES = (".jsonl", ".json", *CELLS)
"""Endings of the files that are read here."""

TABLES = {".parquet": "parquet", ".arrow": "arrow"}
"""Ending of a file -> the builder of `datasets` that reads it."""

NO_ROWS = "the file holds no rows; add at least one example"

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""`name` or `owner/name`; any other path is a path of this machine."""

LONGEST_CELL = 1 << 30

PlacedRow = tuple[str, Mapping[str, Any]]
"""(`file, line 3`, the row)."""


@dataclass(frozen=True)
class GivenRows:
    """The rows of a task; without held-out rows, a seeded part of them is held out."""

    train: list[PlacedRow]
    test: list[PlacedRow] = field(default_factory=list)


def load_rows(config: FileTask) -> GivenRows:
    """Return the rows to train on, and held-out ones where a split or a file of them is named."""
    test_path: Path | None = getattr(config, "test_path", None)
    if not isinstance(config, DatasetSource):
        test = read_rows(test_path, "task.test_path") if test_path else []
        return GivenRows(read_rows(config.path, "task.path"), test)
    rows = GivenRows(_load(config, config.path, config.split, "task.path"))
    if test_path is not None and config.path.expanduser().is_file():
        rows.test.extend(_load(config, test_path, "train", "task.test_path"))
    elif config.held_out_split is not None:
        rows.test.extend(_load(config, config.path, config.held_out_split, "task.path"))
    return rows


def read_rows(path: Path, setting: str) -> list[PlacedRow]:
    """Read the rows of a file: JSON lines, a JSON list of objects, CSV or TSV with a line of names.

    Every cell of CSV or TSV is its text; an empty one is a missing field. Errors name the setting.
    """
    try:
        text = path.expanduser().read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        form = "" if isinstance(error, OSError) else " as UTF-8 text"
        raise GermlineError(
            f"{setting}: {path} cannot be read{form} (relative paths start at {Path.cwd()}): "
            f"{getattr(error, 'strerror', None) or error}"
        ) from None
    rows: list[tuple[str, Any]]
    if path.suffix in CELLS:
        rows = list(_csv_rows(text, path))
    elif path.suffix == ".json" and text.lstrip().startswith("["):
        rows = [(f"{path}, row {n}", row) for n, row in enumerate(_parsed(text, path))]
    else:
        # Not splitlines(): JSON text may hold U+2028 and other characters it would cut at.
        lines = enumerate(text.split("\n"), start=1)
        rows = [
            (f"{path}, line {number}", _parsed(line, path, number))
            for number, line in lines
            if line.strip()
        ]
    if not rows:
        raise GermlineError(f"{setting}: {path}: {NO_ROWS}")
    for place, row in rows:
        if not isinstance(row, dict):
            raise GermlineError(
                f"{place}: a row must be a JSON object, found {shown(row)} ({type(row).__name__})"
            )
    return rows


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


def may_be_on_hub(path: Path) -> bool:
    """Tell whether a path that does not exist may be the name of a dataset on the hub."""
    return HUB_NAME.fullmatch(str(path)) is not None and path.suffix not in (*TEXT_FILES, *TABLES)


def row_field(row: Mapping[str, Any], field: str, kind: type[Wanted], place: str) -> Wanted:
    """Return a field of a row; `a.b` is the field `b` of the field `a`."""
    value = field_value(row, field)
    if value is None:
        raise GermlineError(f"{place}: the field `{field}` is missing; {fields_found(row)}")
    if not isinstance(value, kind):
        raise GermlineError(
            f"{place}: the field `{field}` must be {kind.__name__}, found {shown(value)} "
            f"({type(value).__name__})"
        )
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise GermlineError(f"{place}: the field `{field}` is not Unicode text: {shown(value)}")
    return value


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
        names += [f"`{name}.{key}`" for key in value] if inner and value else [f"`{name}`"]
        names[-1] += " (null)" if value is None else ""
    return f"fields found: {', '.join(names) or 'none'}"


def _parsed(text: str, path: Path, line: int = 1) -> Any:
    """Parse JSON whose first line has this number in a file."""
    try:
        return json.loads(text, object_pairs_hook=partial(_fields, f"{path}, line {line}"))
    except json.JSONDecodeError as error:
        place, why = f"line {line + error.lineno - 1}, column {error.colno}", error.msg
    except (ValueError, RecursionError) as error:
        place, why = f"line {line}", str(error)
    raise GermlineError(
        f"{path}, {place}: not valid JSON: {why}; a file of rows has one object per line, or, if "
        "it is named .json, one list of objects"
    )


def _fields(place: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):  # the last value would win
        names = [name for name, _ in pairs]
        raise GermlineError(f"{place}: two fields have the same name: rename one, found {names}")
    return fields


def _csv_rows(text: str, path: Path) -> Iterator[PlacedRow]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=CELLS[path.suffix], strict=True
    )
    try:
        names = reader.fieldnames or ()
        if len(set(names)) < len(names):
            raise GermlineError(f"{path}: two columns have the same name, found {names}")
        for cells in reader:
            place = f"{path}, line {reader.line_num}"
            if None in cells or None in cells.values():
                raise GermlineError(
                    f"{place}: there must be {len(names)} cells, as in line 1; a cell with a "
                    "comma, tab or line break stands in double quotes"
                )
            yield place, {name: cell for name, cell in cells.items() if cell}
    except csv.Error as error:
        place = f"{path}, line {reader.reader.line_num}"
        raise GermlineError(f"{place}: not valid CSV: {error}") from None


def _load(config: DatasetSource, named: Path, split: str, setting: str) -> list[PlacedRow]:
    path = named.expanduser()
    is_file = path.is_file()
    if not path.exists() and not may_be_on_hub(named):
        raise GermlineError(
            f"{setting}: there is no file or folder {str(named)!r} (relative paths start at "
            f"{Path.cwd()}); a dataset on the Hugging Face hub is named OWNER/NAME"
        )
    if is_file and path.suffix not in (*TEXT_FILES, *TABLES):
        raise GermlineError(
            f"{setting}: {named} is a file of no known kind; known: "
            f"{', '.join((*TEXT_FILES, *TABLES))}"
        )
    if is_file and path.suffix in TEXT_FILES:
        rows = read_rows(named, setting)
        rows = rows if split == "train" else _slice(rows, split, setting)
    else:
        rows = _read_by_library(config, named, split, setting)
    if not rows:
        if is_file and split == "train":
            raise GermlineError(f"{setting}: {named}: {NO_ROWS}")
        raise GermlineError(
            f"{setting}: the split {split!r} of {named} holds no rows: correct task.split or "
            "task.test_split"
        )
    return rows


def _read_by_library(
    config: DatasetSource, named: Path, split: str, setting: str
) -> list[PlacedRow]:
    datasets = _library()
    try:
        with _without_output(datasets):
            return [
                (
                    f"{named}, {split} row {index}",
                    {name: value for name, value in row.items() if value is not None},
                )
                for index, row in enumerate(_load_with(datasets, config, named.expanduser(), split))
            ]
    except Exception as error:  # noqa: BLE001 - of many kinds, some of them of other libraries
        cause = str(error.__cause__ or error).strip().splitlines()  # the outer one says nothing
        raise GermlineError(
            f"{setting}: the split {split!r} of {str(named)!r} cannot be loaded "
            f"({cause[0][:300] if cause else type(error).__name__}); check the path, task.split, "
            "task.test_split, task.subset, and the network if it is a name of the hub"
        ) from None


def _load_with(datasets: Any, config: DatasetSource, path: Path, split: str) -> Any:
    if path.is_file():
        if not path.stat().st_size:
            raise GermlineError("the file is empty")
        return datasets.load_dataset(TABLES[path.suffix], data_files=str(path), split=split)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, dict) and split not in saved:
            raise GermlineError(f"the splits are {', '.join(map(repr, saved))}")
        return saved[split] if isinstance(saved, dict) else saved
    source = {"path": str(path), "name": config.subset, "revision": config.revision}
    loaded = datasets.load_dataset(**source, split=split)
    if getattr(getattr(loaded, "info", None), "builder_name", None) != "csv":
        return loaded
    texts = datasets.Features(dict.fromkeys(loaded.column_names, datasets.Value("string")))
    rows = datasets.load_dataset(**source, split=split, features=texts, keep_default_na=False)
    return [{name: cell or None for name, cell in row.items()} for row in rows]


def _slice(rows: list[PlacedRow], split: str, setting: str) -> list[PlacedRow]:
    """Return the rows of a split such as `train[:80%]+train[90%:]`."""
    try:
        parts = _library().ReadInstruction.from_spec(split).to_absolute({"train": len(rows)})
    except (ValueError, AssertionError) as error:
        raise GermlineError(f"{setting}: {split!r} is no split: {error}") from None
    return [row for part in parts for row in rows[part.from_ : part.to]]


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise GermlineError(
            "task.kind=dataset needs the library `datasets`: pip install 'germline[datasets]'"
        ) from None
    return datasets


@contextmanager
def _without_output(datasets: Any) -> Iterator[None]:
    """Switch the progress bars and the messages of `datasets` off: errors say what is wrong."""
    has_bars = not datasets.are_progress_bars_disabled()
    level = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if has_bars:
            datasets.enable_progress_bars()
