"""Rows of a file, or of a dataset that the library `datasets` loads."""

from pathlib import Path

from germline.config.tasks import FileOrDataset
from germline.tasks.dataset_library import load_dataset_rows
from germline.tasks.dataset_rows import with_columns
from germline.tasks.json_files import PlacedRow, read_json_lines


def load_file_or_dataset(
    config: FileOrDataset,
) -> tuple[list[PlacedRow], list[PlacedRow] | None]:
    """Return the rows to train on, and held-out ones where they are named.

    Raises:
        GermlineError: the rows cannot be read.
    """
    if config.path.expanduser().is_file():
        train, test = _file_rows(config, config.path, "task.path"), None
        if config.test_path is not None:
            test = _file_rows(config, config.test_path, "task.test_path")
    else:
        train = load_dataset_rows(config, config.split)
        test = load_dataset_rows(config, config.test_split) if config.test_split else None
    train = with_columns(train, config.columns)
    return train, None if test is None else with_columns(test, config.columns)


def _file_rows(config: FileOrDataset, path: Path, setting: str) -> list[PlacedRow]:
    if path.suffix == ".jsonl":
        return read_json_lines(path, setting)
    return load_dataset_rows(config.model_copy(update={"path": path}), "train")
