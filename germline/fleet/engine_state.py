"""The state of an engine, its weights and moments, on its way to another engine."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@runtime_checkable
class EngineState(Protocol):
    """Weights and moments after some update, where other engines can read them; picklable."""

    def unpacked(self) -> AbstractContextManager[Path]:
        """Yield a folder of snapshots on the machine where this is called."""


@dataclass(frozen=True)
class FolderState:
    """Snapshots in a folder that every engine can read."""

    folder: Path

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the folder."""
        yield self.folder
