"""Rows from the Hugging Face hub, a folder or a file; the only module that imports `datasets`."""

from pathlib import Path
from typing import Any

from germline.config import Dataset
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


def load_dataset_rows(config: Dataset, split: str) -> list[PlacedRow]:
    """Load one split as rows.

    Raises:
        GermlineError: the library is not installed, the dataset cannot be loaded, or it is empty.
    """
    try:
        import datasets
    except ImportError:
        raise GermlineError(
            "task.kind=dataset needs the library `datasets`: pip install 'germline[datasets]'"
        ) from None
    try:
        rows = _load(datasets, config, split)
    except Exception as error:  # noqa: BLE001 - of many kinds, some of them of other libraries
        raise GermlineError(
            f"task.path: the split {split!r} of {str(config.path)!r} cannot be loaded: "
            f"{_first_line(error)}. {_remedy(config)}"
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
            "(task.split, task.test_split)"
        )
    return placed


def _load(datasets: Any, config: Dataset, split: str) -> Any:
    """Call the function of `datasets` that fits what the path names."""
    path = config.path.expanduser()
    if path.is_file():
        if path.suffix not in BUILDERS:
            raise GermlineError(f"a file must end with one of {', '.join(BUILDERS)}")
        return datasets.load_dataset(BUILDERS[path.suffix], data_files=str(path), split=split)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        return saved[split] if isinstance(saved, dict) else saved
    return datasets.load_dataset(
        str(path), name=config.subset, split=split, revision=config.revision
    )


def _remedy(config: Dataset) -> str:
    """Say what to look at: a path that does not exist is taken for a name on the hub."""
    if config.path.expanduser().exists():
        return "Check task.split, task.test_split and task.subset"
    return (
        f"There is no file or folder of this name in {Path.cwd()}, so it was looked for on the "
        "Hugging Face hub: check the name, task.subset, task.split and the network"
    )


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error  # "An error occurred while generating" says nothing
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0][:300] if text else 'no message'}"
