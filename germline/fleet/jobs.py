"""What an engine elsewhere can be told to do: a job is sent to it and done there.

Seeds, coefficients, prompts and completions travel; weights never do. Every engine loads the model
itself and applies every update itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from germline.checkpoint import restore, save_snapshot
from germline.protocols import Engine
from germline.record import Entry
from germline.signals import UpdateSize
from germline.types import Completion, Decoding, Example, Move, Perturbation, Update


@runtime_checkable
class Job(Protocol):
    """Something an engine can do; picklable, and so is what it returns."""

    def __call__(self, engine: Engine) -> Any:
        """Do it."""


@dataclass(frozen=True)
class Play:
    """Play one cell."""

    members: Sequence[Perturbation | None]
    examples: Sequence[Example]
    decoding: Decoding

    def __call__(self, engine: Engine) -> list[list[Completion]]:
        """Return the completions, `[members][examples]`."""
        return engine.generate(self.members, self.examples, self.decoding)


@dataclass(frozen=True)
class Apply:
    """Move the masters by one update."""

    update: Update | Move

    def __call__(self, engine: Engine) -> UpdateSize | None:
        """Apply it, refresh the serving copy, and return how far the masters moved."""
        return engine.apply(self.update)


@dataclass(frozen=True)
class Scales:
    """Say by how much the sigmas of tensors differ from that of their members."""

    def __call__(self, engine: Engine) -> Mapping[str, float]:
        """Return the factor of each searched tensor."""
        return engine.weights.scales()


@dataclass(frozen=True)
class Dimension:
    """Say how many numbers are searched."""

    def __call__(self, engine: Engine) -> int:
        """Return their number."""
        return engine.weights.dimension


@dataclass(frozen=True)
class Digest:
    """Say what the masters are."""

    def __call__(self, engine: Engine) -> str:
        """Return their digest."""
        return engine.weights.digest()


@dataclass(frozen=True)
class SaveSnapshot:
    """Write masters and moments after a generation, keeping the newest `keep` snapshots."""

    folder: Path
    generation: int
    keep: int

    def __call__(self, engine: Engine) -> None:
        """Write it; the folder is one that whoever asked can read."""
        save_snapshot(engine.weights, self.folder, self.generation, keep=self.keep)


@dataclass(frozen=True)
class Restore:
    """Bring freshly loaded weights to the state after the last of some updates."""

    entries: Sequence[Entry]
    folder: Path | None
    base_digest: str

    def __call__(self, engine: Engine) -> str:
        """Return the verified digest; snapshots in the folder save replaying what they hold."""
        last = len(self.entries) - 1
        digest = restore(engine.weights, self.entries, self.folder, self.base_digest, last)
        engine.refresh()
        return digest
