"""How the state of an engine reaches newcomers and the run directory.

It is as large as what is searched. Engines that share a disk write it there themselves; where they
share none, another `StateTransfer` takes it from one to the other.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from germline.fleet.engine_state import EngineState, FolderState
from germline.fleet.worker_jobs import EngineJob, SaveSnapshotJob

Ask = Callable[[EngineJob], Any]
"""Let any engine that has the weights of the fleet do a job, and return its answer."""


@runtime_checkable
class StateTransfer(Protocol):
    """Takes states from engine to engine, and to and from a folder here."""

    def from_peer(self, ask: Ask, generation: int) -> AbstractContextManager[EngineState]:
        """Let an engine leave its state, as it is after `generation`, for others to take over."""

    def from_folder(self, folder: Path) -> EngineState | None:
        """Return the snapshots in a folder here as engines can take them over."""

    def to_folder(self, ask: Ask, folder: Path, generation: int, keep: int) -> None:
        """Let an engine's state be the newest of `keep` snapshots in a folder here."""


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
