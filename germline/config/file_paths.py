"""Relative paths in a config: the working directory comes first, then the config file's own folder.

Paths are relative to the working directory, as in every command. A file or folder that does not
exist there is looked up in the folder of the config file, so that a config and its task can be
moved together. A run directory holds absolute paths.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from germline.config.run_config import Config

GGUF = ".gguf"
"""The ending of a file that holds a model in the format of llama.cpp."""

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "task": ("path", "test_path", "words", "env"),
    "space": ("init_adapter",),
}
"""Section -> its settings that may hold a path."""


def resolve_file_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Replace each path that exists in this folder only by its location there."""

    def located(path: str) -> str:
        inside = folder / path
        return str(inside) if not Path(path).expanduser().exists() and inside.exists() else path

    resolved = _with_paths(values, located)
    task = values.get("task")
    kind = task.get("kind") if isinstance(task, Mapping) else task
    if isinstance(kind, str) and Path(kind).suffix:  # `task: riddles.py`, and no short name
        place = located(kind)
        resolved["task"] = {**task, "kind": place} if isinstance(task, Mapping) else place
    return resolved


def with_absolute_paths(config: Config) -> Config:
    """Write the paths that the run reads as absolute paths, so that any folder works."""
    return Config.model_validate(_with_paths(config.model_dump(), absolute_path))


def is_gguf(model: str) -> bool:
    """Whether a model is given as a GGUF file."""
    return Path(model).suffix.lower() == GGUF


def absolute_path(name: str) -> str:
    """Write an existing file or folder as an absolute path; a hub id stays as it is."""
    path = Path(name).expanduser()
    if is_gguf(name):  # The file may be a link of the Hugging Face cache, whose targets differ.
        return str(path.parent.resolve() / path.name)
    return str(path.resolve()) if path.exists() else name


def _with_paths(values: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return settings with a change to every path: of models, tasks, adapters and classifiers."""
    changed = dict(values)
    if changed.get("model", "nano") != "nano":
        changed = _changed(changed, ("model",), change)
    for name, settings in SETTINGS.items():
        changed[name] = _changed(values.get(name), settings, change)
    for name in ("task", "held_out"):
        section = changed.get(name)
        scorers = section.get("scorers") if isinstance(section, Mapping) else None
        if isinstance(section, Mapping) and isinstance(scorers, Mapping):
            located = {key: _scorer(scorer, change) for key, scorer in scorers.items()}
            changed[name] = {**section, "scorers": located}
    return {name: value for name, value in changed.items() if name in values}


def _scorer(scorer: Any, change: Callable[[str], str]) -> Any:
    """Change the model of a classifier; other scorers name models of their services."""
    is_classifier = isinstance(scorer, Mapping) and scorer.get("kind") == "classifier"
    return _changed(scorer, ("model",), change) if is_classifier else scorer


def _changed(section: Any, settings: tuple[str, ...], change: Callable[[str], str]) -> Any:
    if not isinstance(section, Mapping):
        return section
    paths = {
        name: change(str(section[name]))
        for name in settings
        if isinstance(section.get(name), str | Path)
    }
    return {**section, **paths}
