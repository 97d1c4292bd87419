"""How the state of an engine reaches newcomers and the run directory.

It is as large as what is searched. Engines that share a disk write it there themselves; where they
share none, another `Carrier` takes it from one to the other.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from germline.fleet.jobs import Job, SaveSnapshot
from germline.fleet.state import InFolder, State

Ask = Callable[[Job], Any]
"""Let any engine that has the weights of the fleet do a job, and return its answer."""


@runtime_checkable
class Carrier(Protocol):
    """Takes states from engine to engine, and to and from a folder here."""

    def from_peer(self, ask: Ask, generation: int) -> AbstractContextManager[State]:
        """Let an engine leave its state, as it is after `generation`, for others to take over."""

    def from_folder(self, folder: Path) -> State | None:
        """Return the snapshots in a folder here as engines can take them over."""

    def to_folder(self, ask: Ask, folder: Path, generation: int, keep: int) -> None:
        """Let an engine's state be the newest of `keep` snapshots in a folder here."""


class SharedDisk:
    """Engines of this machine: they read and write the same files."""

    @contextmanager
    def from_peer(self, ask: Ask, generation: int) -> Iterator[State]:
        """Let an engine write to a folder that is deleted afterwards."""
        with tempfile.TemporaryDirectory(prefix="germline-peer-") as folder:
            ask(SaveSnapshot(Path(folder), generation, keep=1))
            yield InFolder(Path(folder))

    def from_folder(self, folder: Path) -> State | None:
        """Return the folder as it is."""
        return InFolder(folder)

    def to_folder(self, ask: Ask, folder: Path, generation: int, keep: int) -> None:
        """Let an engine write it."""
        ask(SaveSnapshot(folder, generation, keep))
