"""Relative paths in a config: the working directory comes first, then the config file's own folder.

Paths are relative to the working directory, as in every command. A file that does not exist there
is looked up in the folder of the config file, so that a config and its task can be moved together.
A run directory holds absolute paths.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from germline.config.run_config import Config
from germline.config.scorers import Classifier, ScorerBase

GGUF = ".gguf"
"""The ending of a file that holds a model in the format of llama.cpp."""

TASK_FILES = ("path", "test_path", "words")
"""Settings of a task that may hold a path."""

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "task": ("kind", *TASK_FILES),
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


def with_absolute_paths(config: Config) -> Config:
    """Write the paths that the run reads as absolute paths, so that any folder works."""
    files = {
        name: file.expanduser().resolve()
        for name in TASK_FILES
        # A path that does not exist may be the name of a dataset on the hub.
        if (file := getattr(config.task, name, None)) is not None and file.expanduser().exists()
    }
    if files:
        config = config.model_copy(update={"task": config.task.model_copy(update=files)})
    if config.model != "nano":
        config = config.model_copy(update={"model": absolute_model(config.model)})
    for name in ("task", "held_out"):
        section = getattr(config, name)
        scorers = {key: _with_absolute_model(one) for key, one in section.scorers.items()}
        if scorers != section.scorers:
            changed = section.model_copy(update={"scorers": scorers})
            config = config.model_copy(update={name: changed})
    if init_adapter := getattr(config.space, "init_adapter", None):
        folder = str(Path(init_adapter).expanduser().resolve())
        space = config.space.model_copy(update={"init_adapter": folder})
        config = config.model_copy(update={"space": space})
    return config


def is_gguf(model: str) -> bool:
    """Whether a model is given as a GGUF file."""
    return Path(model).suffix.lower() == GGUF


def absolute_model(model: str) -> str:
    """Write the folder or GGUF file of a model as an absolute path; a hub id stays as it is."""
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path.resolve())
    # The file may be a link of the Hugging Face cache, whose targets have no ending.
    return str(path.parent.resolve() / path.name) if is_gguf(model) else model


def _with_absolute_model(scorer: ScorerBase) -> ScorerBase:
    if not isinstance(scorer, Classifier) or not Path(scorer.model).expanduser().is_dir():
        return scorer
    return scorer.model_copy(update={"model": str(Path(scorer.model).expanduser().resolve())})


def _located(value: object, folder: Path) -> object:
    if not isinstance(value, str) or Path(value).expanduser().exists():
        return value
    beside = folder / value
    return str(beside) if Path(value).suffix and beside.exists() else value
