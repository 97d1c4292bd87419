"""The jobs that are sent to a remote engine, and how states are brought to other engines.

A job carries seeds, coefficients, prompts and completions, never weights. Every engine loads the
model and applies every update itself. The read-only jobs are in `engine_queries`.

Only an engine that was started again takes over a state: 4 bytes for each searched number, and
moments. Engines that share a disk write it there; otherwise a subclass of `StateTransfer` sends it.
"""

import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from germline.checkpoint import restore, save_snapshot
from germline.episodes import play_episodes
from germline.graders.pool import GraderPool
from germline.protocols import Engine, Members
from germline.record import JournalEntry
from germline.types import (
    Completion,
    Decoding,
    Example,
    GermlineError,
    MeanUpdate,
    Rollout,
    Update,
    UpdateSize,
)

EngineJob = Callable[[Engine], Any]
"""Work for an engine; the job and its result are picklable."""


@runtime_checkable
class EngineState(Protocol):
    """Weights and moments after some update, where other engines can read them; picklable."""

    def unpacked(self) -> AbstractContextManager[Path]:
        """Yield a folder of snapshots on the machine where this is called."""


@dataclass(frozen=True)
class GenerateJob:
    """Generate the completions of one microbatch, whose examples are without answers and facts."""

    members: Members
    examples: Sequence[Example]
    decoding: Decoding

    def __call__(self, engine: Engine) -> list[list[Completion]]:
        """Return the completions, `[members][examples]`."""
        return engine.generate(self.members, self.examples, self.decoding)


@dataclass(frozen=True)
class EpisodesJob:
    """Play the episodes of one microbatch beside the engine.

    The environments run in grader processes on the engine's machine, because an episode has a
    message for every turn of the model. They need the answers and facts of the examples.

    `first_member` is the index of the first member in the population.
    """

    members: Members
    examples: Sequence[Example]
    decoding: Decoding
    graders: bytes  # pickled: the same bytes are the same graders
    first_member: int
    max_turns: int = 1

    def __call__(self, engine: Engine) -> list[list[Rollout]]:
        """Return the rollouts, `[members][examples]`, with members counted from 0."""
        graders = _grader_pool(self.graders)
        return play_episodes(
            engine, graders, self.members, self.examples, self.decoding, self.first_member
        )


@lru_cache(maxsize=1)
def _grader_pool(pickled: bytes) -> GraderPool:
    """Return the graders of this process; another task's graders are made again."""
    made: GraderPool = pickle.loads(pickled)
    return made


@dataclass(frozen=True)
class ApplyJob:
    """Apply one update to the masters."""

    update: Update | MeanUpdate

    def __call__(self, engine: Engine) -> UpdateSize | None:
        """Apply it, refresh the serving copy, and return the size of the step."""
        return engine.apply(self.update)


@dataclass(frozen=True)
class DigestJob:
    """Return the digest of the masters."""

    def __call__(self, engine: Engine) -> str:
        """Return their digest."""
        return engine.weights.digest()


@dataclass(frozen=True)
class SaveSnapshotJob:
    """Write masters and moments after a generation."""

    folder: Path
    generation: int

    def __call__(self, engine: Engine) -> None:
        """Write it to a folder that the fleet can read."""
        save_snapshot(engine.weights, self.folder, self.generation)


@dataclass(frozen=True)
class RestoreJob:
    """Bring freshly loaded weights to the state after the last of some updates."""

    entries: Sequence[JournalEntry]
    state: EngineState | None
    base_digest: str

    def __call__(self, engine: Engine) -> str:
        """Return the verified digest; with a state, only the updates after it are replayed."""
        last = len(self.entries) - 1
        with self.state.unpacked() if self.state else nullcontext() as folder:
            digest = restore(engine.weights, self.entries, folder, self.base_digest, last)
        engine.refresh()
        return digest


@dataclass(frozen=True)
class CatchUpJob:
    """Apply the updates that a late engine missed."""

    entries: Sequence[JournalEntry]
    digest: str

    def __call__(self, engine: Engine) -> None:
        """Apply them, and check that they lead to the digest of the fleet."""
        for entry in self.entries:
            engine.apply(entry.update)
        if (digest := engine.weights.digest()) != self.digest:
            raise GermlineError(f"it caught up to digest {digest[:16]}, not {self.digest[:16]}")


def fits(job: EngineJob, result: object) -> bool:
    """Whether a result is of the type and shape of its job; another one is a loss of the engine."""
    if isinstance(job, DigestJob):
        return isinstance(result, str)
    if isinstance(job, ApplyJob):
        return result is None or isinstance(result, UpdateSize)
    members, examples = getattr(job, "members", None), getattr(job, "examples", ())
    return members is None or (
        isinstance(result, list)
        and len(result) == len(members)
        and all(isinstance(row, list) and len(row) == len(examples) for row in result)
    )


Ask = Callable[[EngineJob], Any]
"""Send a job to any engine that has the weights of the fleet, and return the result."""


@dataclass(frozen=True)
class FolderState:
    """Snapshots in a folder that every engine can read."""

    folder: Path

    def unpacked(self) -> AbstractContextManager[Path]:
        """Yield the folder."""
        return nullcontext(self.folder)


class StateTransfer:
    """Brings states from engine to engine, and to and from a folder of this machine.

    The engines are on this machine as well: they read and write the same files.
    """

    @contextmanager
    def from_peer(self, ask: Ask, generation: int) -> Iterator[EngineState]:
        """Let an engine publish its state after `generation`, for other engines to load."""
        with tempfile.TemporaryDirectory(prefix="germline-peer-") as folder:
            ask(SaveSnapshotJob(Path(folder), generation))
            yield FolderState(Path(folder))

    def from_folder(self, folder: Path) -> EngineState | None:
        """Return the snapshots in a folder of this machine in a form that engines can load."""
        return FolderState(folder)

    def to_folder(self, ask: Ask, folder: Path, generation: int) -> None:
        """Write the state of an engine to a folder of this machine."""
        ask(SaveSnapshotJob(folder, generation))
