"""Rows of a file, a folder, or the Hugging Face hub; the only module that imports `datasets`.

JSON and CSV files are read by `row_files`; `datasets` reads everything else. Of CSV files in a
folder or on the hub, every cell is its text as well.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from germline.config.row_tasks import DatasetSource, FileOrDataset
from germline.tasks.row_examples import GivenRows
from germline.tasks.row_files import TEXT_FILES, PlacedRow, read_rows
from germline.types import GermlineError

TABLES = {".parquet": "parquet", ".arrow": "arrow"}
"""Ending of a file -> the builder of `datasets` that reads it."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""`name` or `owner/name`; any other path is a path of this machine."""


def may_be_on_hub(path: Path) -> bool:
    """Tell whether a path that does not exist may be the name of a dataset on the hub."""
    return HUB_NAME.fullmatch(str(path)) is not None and path.suffix not in (*TEXT_FILES, *TABLES)


def load_rows(config: DatasetSource) -> GivenRows:
    """Return the rows to train on, and held-out ones where a split or a file of them is named."""
    train = _load(config, config.path, config.split, "task.path")
    given = config.test_path if isinstance(config, FileOrDataset) else None
    if given is not None and config.path.expanduser().is_file():
        return GivenRows(train, _load(config, given, "train", "task.test_path"))
    if config.held_out_split is None:
        return GivenRows(train)
    return GivenRows(train, _load(config, config.path, config.held_out_split, "task.path"))


def _load(config: DatasetSource, named: Path, split: str, setting: str) -> list[PlacedRow]:
    path = named.expanduser()
    is_file = path.is_file()
    if not path.exists() and not may_be_on_hub(named):
        raise GermlineError(
            f"{setting}: there is no file or folder {str(named)!r} (relative paths start at "
            f"{Path.cwd()}): name one that exists, or a dataset on the Hugging Face hub as "
            "OWNER/NAME"
        )
    if is_file and path.suffix not in (*TEXT_FILES, *TABLES):
        raise GermlineError(
            f"{setting}: {named} is a file of no known kind: its name must end in one of "
            f"{', '.join((*TEXT_FILES, *TABLES))}"
        )
    if is_file and path.suffix in TEXT_FILES:
        rows = read_rows(named, setting)
        return rows if split == "train" else _slice(rows, split, setting)
    datasets = _library()
    try:
        with _without_output(datasets):
            loaded = _load_with(datasets, config, path, split)
            rows = [
                (
                    f"{named}, {split} row {index}",
                    {name: value for name, value in row.items() if value is not None},
                )
                for index, row in enumerate(loaded)
            ]
    except Exception as error:  # noqa: BLE001 - of many kinds, some of them of other libraries
        cause = str(error.__cause__ or error).strip().splitlines()  # the outer one says nothing
        raise GermlineError(
            f"{setting}: the split {split!r} of {str(named)!r} cannot be loaded "
            f"({cause[0][:300] if cause else type(error).__name__}); check the path, task.split, "
            "task.test_split, task.subset, and the network if it is a name of the hub"
        ) from None
    if not rows:
        raise GermlineError(f"{setting}: the split {split!r} of {named} holds no rows")
    return rows


def _load_with(datasets: Any, config: DatasetSource, path: Path, split: str) -> Any:
    """Call the function of `datasets` that fits what the path names."""
    if path.is_file():
        builder = TABLES[path.suffix]
        return datasets.load_dataset(builder, data_files=str(path), split=split)
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
