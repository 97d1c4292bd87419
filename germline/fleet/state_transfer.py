"""How the state of an engine reaches another engine or the run directory.

The state has 4 bytes for each searched number, and moments. Engines that share a disk write it
there; without a shared disk, another `StateTransfer` sends it.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from germline.fleet.worker_jobs import EngineJob, EngineState, SaveSnapshotJob

Ask = Callable[[EngineJob], Any]
"""Send a job to any engine that has the weights of the fleet, and return the result."""


@runtime_checkable
class StateTransfer(Protocol):
    """Brings states from engine to engine, and to and from a folder of this machine."""

    def from_peer(self, ask: Ask, generation: int) -> AbstractContextManager[EngineState]:
        """Let an engine publish its state after `generation`, for other engines to load."""

    def from_folder(self, folder: Path) -> EngineState | None:
        """Return the snapshots in a folder of this machine in a form that engines can load."""

    def to_folder(self, ask: Ask, folder: Path, generation: int, keep: int) -> None:
        """Write the state of an engine to a folder of this machine, keeping `keep` snapshots."""


@dataclass(frozen=True)
class FolderState:
    """Snapshots in a folder that every engine can read."""

    folder: Path

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the folder."""
        yield self.folder


class SharedDiskTransfer:
    """Engines of this machine: they read and write the same files."""

    @contextmanager
    def from_peer(self, ask: Ask, generation: int) -> Iterator[EngineState]:
        """Let an engine write to a folder that is deleted afterwards."""
        with tempfile.TemporaryDirectory(prefix="germline-peer-") as folder:
            ask(SaveSnapshotJob(Path(folder), generation, keep=1))
            yield FolderState(Path(folder))

    def from_folder(self, folder: Path) -> EngineState | None:
        """Return the folder as it is."""
        return FolderState(folder)

    def to_folder(self, ask: Ask, folder: Path, generation: int, keep: int) -> None:
        """Let an engine write it."""
        ask(SaveSnapshotJob(folder, generation, keep))
