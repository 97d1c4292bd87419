"""Relative paths in a config file: the working directory comes first, then the file's own folder.

Paths are relative to the working directory, as in every command. A file that does not exist there
is looked up in the folder of the config file, so that a config and its task can be moved together.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "task": ("kind", "path", "test_path"),
    "space": ("init_adapter",),
}
"""Section -> its settings that may hold a path; `task: riddles.py` alone is its `kind`."""


def resolve_file_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Replace each path that exists in this folder only by its location there."""
    resolved = dict(values)
    for section, names in SETTINGS.items():
        given = values.get(section)
        if isinstance(given, str):
            resolved[section] = _located(given, folder)
        elif isinstance(given, Mapping):
            paths = {name: _located(given[name], folder) for name in names if name in given}
            resolved[section] = {**given, **paths}
    return resolved


def _located(value: object, folder: Path) -> object:
    if not isinstance(value, str) or Path(value).expanduser().exists():
        return value
    beside = folder / value
    return str(beside) if Path(value).suffix and beside.exists() else value
