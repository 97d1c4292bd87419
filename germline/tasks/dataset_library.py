"""Rows from the Hugging Face hub, a folder or a file; the only module that imports `datasets`."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from germline.config.tasks import DatasetSource
from germline.tasks.json_files import PlacedRow
from germline.types import GermlineError

BUILDERS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".arrow": "arrow",
}
"""Ending of a file -> the builder of `datasets` that reads it."""


FORMS = {
    "csv": "a CSV file is UTF-8 text; its first line names the columns, all lines have as many "
    "cells, separated by commas, and a cell with a comma or a line break stands in double quotes",
    "json": "a JSON file has one object per line, or one list of objects, in UTF-8; a column has "
    "values of one type",
    "parquet": "the file is damaged, or was not written to its end: write it again",
    "arrow": "the file is damaged, or was not written to its end: write it again",
}
"""Builder of `datasets` -> what a file has to be for it."""

SEPARATORS = (";", "\t", "|")
"""What other programs than `datasets` write between the cells of a CSV file."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""`name` or `owner/name`; any other path is a path of this machine."""


def may_be_on_hub(path: Path) -> bool:
    """Tell whether a path that does not exist may be the name of a dataset on the hub."""
    return HUB_NAME.fullmatch(str(path)) is not None and path.suffix not in BUILDERS


def load_dataset_rows(config: DatasetSource, split: str) -> list[PlacedRow]:
    """Load one split as rows.

    Raises:
        GermlineError: the library is not installed, the dataset cannot be loaded, or it is empty.
    """
    path = config.path.expanduser()
    if not path.exists() and not may_be_on_hub(config.path):
        place = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise GermlineError(
            f"task.path: there is no file or folder {str(config.path)!r}{place}: name one that "
            "exists, or a dataset on the Hugging Face hub as OWNER/NAME"
        )
    try:
        import datasets
    except ImportError:
        raise GermlineError(
            "task.kind=dataset needs the library `datasets`: pip install 'germline[datasets]'"
        ) from None
    with _without_output(datasets):
        try:
            rows = _load(datasets, config, path, split)
        except GermlineError:
            raise
        except Exception as error:  # noqa: BLE001 - of many kinds, some of them of other libraries
            raise GermlineError(
                f"task.path: the split {split!r} of {str(config.path)!r} cannot be loaded"
                f"{_reason(error)}. {_remedy(config)}"
            ) from None
    placed: list[PlacedRow] = [
        # An empty cell is a missing field, not the text "null".
        (
            f"{config.path}, {split} row {index}",
            {name: value for name, value in row.items() if value is not None},
        )
        for index, row in enumerate(rows)
    ]
    if not placed:
        raise GermlineError(
            f"task.path: the split {split!r} of {config.path} holds no rows; name another one "
            "(task.split, task.test_split), or put rows into it"
        )
    return placed


def _load(datasets: Any, config: DatasetSource, path: Path, split: str) -> Any:
    """Call the function of `datasets` that fits what the path names."""
    if path.is_file():
        return _load_file(datasets, path, split)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        if not isinstance(saved, dict):
            return saved
        if split not in saved:
            raise GermlineError(
                f"task.path: {path} has no split {split!r}: set task.split and task.test_split to "
                f"one of {', '.join(map(repr, saved))}"
            )
        return saved[split]
    return datasets.load_dataset(
        str(path), name=config.subset, split=split, revision=config.revision
    )


def _load_file(datasets: Any, path: Path, split: str) -> Any:
    """Load a file, whose rows `datasets` calls the split `train`.

    Raises:
        GermlineError: it is of another kind, empty or damaged, or has no such split.
    """
    builder = BUILDERS.get(path.suffix)
    if builder is None:
        raise GermlineError(
            f"task.path: {path} is a file of no known kind: its name must end in one of "
            f"{', '.join(BUILDERS)}"
        )
    names = [part.partition("[")[0].strip() for part in split.split("+")]
    if names != ["train"] * len(names):
        raise GermlineError(
            f"task.path: {path} is one file, which has no split {split!r}: leave task.split and "
            "task.test_split out, or name parts of it, such as train[:80%] and train[80%:]"
        )
    if not path.stat().st_size:
        raise GermlineError(f"task.path: {path} is empty: put rows into it, or name another file")
    try:
        loaded = datasets.load_dataset_builder(builder, data_files=str(path))
        loaded.download_and_prepare()
        _check_separator(path, builder, [*loaded.info.features])
        if not any(part.num_examples for part in loaded.info.splits.values()):
            return []  # a table with columns and without rows
        return loaded.as_dataset(split=split)
    except GermlineError:
        raise
    except Exception as error:  # noqa: BLE001 - of many kinds, some of them of other libraries
        raise GermlineError(
            f"task.path: {path} cannot be read as {builder}{_reason(error)}: {FORMS[builder]}"
        ) from None


def _check_separator(path: Path, builder: str, columns: Sequence[str]) -> None:
    """Check that the columns of a CSV file are separated by commas.

    Raises:
        GermlineError: its one column has a name with another separator.
    """
    mark = next((one for one in SEPARATORS if one in columns[0]), None) if columns else None
    if builder == "csv" and len(columns) == 1 and mark:
        raise GermlineError(
            f"task.path: {path} has one column, named {columns[0]!r}, so its cells are separated "
            f"by {mark!r}: write it with commas, as pandas.read_csv({str(path)!r}, sep={mark!r})"
            f".to_csv({f'{path.stem}-commas.csv'!r}, index=False) does"
        )


def _remedy(config: DatasetSource) -> str:
    """Say what to look at: a path that does not exist is taken for a name on the hub."""
    if not config.path.expanduser().exists():
        return (
            f"There is no file or folder of this name in {Path.cwd()}, so it was looked for on the "
            "Hugging Face hub: check the name, task.subset, task.split and the network"
        )
    return (
        f"A folder holds files that end in one of {', '.join(BUILDERS)}, or was written by "
        "`save_to_disk`: check its files, task.split, task.test_split and task.subset"
    )


def _reason(error: Exception) -> str:
    """Return what the library says, in brackets, without the name of its exception."""
    cause = error.__cause__ or error  # "An error occurred while generating" says nothing
    text = str(cause).strip().splitlines()
    return f" ({text[0][:300].rstrip('.!')})" if text else ""


@contextmanager
def _without_output(datasets: Any) -> Iterator[None]:
    """Switch the progress bars and the messages of `datasets` off: errors say what is wrong."""
    shown = not datasets.are_progress_bars_disabled()
    level = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()
