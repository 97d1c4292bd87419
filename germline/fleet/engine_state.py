"""The state of an engine, its weights and moments, on its way to another one."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@runtime_checkable
class EngineState(Protocol):
    """What engines were after some update, where others can get at it; picklable."""

    def unpacked(self) -> AbstractContextManager[Path]:
        """Yield a folder of snapshots on the machine where this is called."""


@dataclass(frozen=True)
class FolderState:
    """Snapshots in a folder that everyone can read."""

    folder: Path

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the folder."""
        yield self.folder
