"""The jobs that are sent to a remote engine.

A job carries seeds, coefficients, prompts and completions, never weights. Every engine loads the
model and applies every update itself. Read-only questions (`Fleet.query`) are jobs as well: a new
one is one class here and the method of `Engine` or `MasterWeights` that answers it.

Only an engine that was started again takes over a snapshot: 4 bytes for each searched number, and
moments. It reads the folder of snapshots, or is sent the newest one where it does not share a disk.
"""

import math
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from germline.checkpoint import (
    commit_snapshot,
    list_snapshots,
    newest_snapshot,
    restore,
    save_snapshot,
)
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
    SeedPerturbation,
    Update,
)

EngineJob = Callable[[Engine], Any]
"""Work for an engine; the job and its result are picklable."""


LARGE_SIGMA = 0.1
"""Noise that every serving dtype shows, in any unit of sigma."""


@dataclass(frozen=True)
class PackedSnapshot:
    """The bytes of a snapshot, for an engine on a host that does not share the disk."""

    generation: int
    data: np.ndarray

    @classmethod
    def newest(cls, folder: Path) -> "PackedSnapshot | None":
        """Read the newest snapshot of a folder; None if there is none."""
        snapshots = list_snapshots(folder)
        if not snapshots:
            return None
        return cls(newest_snapshot(folder), np.fromfile(snapshots[-1], dtype=np.uint8))

    def write(self, folder: Path) -> None:
        """Write the snapshot to a folder of this machine."""
        commit_snapshot(lambda path: path.write_bytes(self.data.data), folder, self.generation)


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

    def __call__(self, engine: Engine) -> None:
        """Apply it, and refresh the serving copy."""
        engine.apply(self.update)


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
class PackSnapshotJob:
    """Return masters and moments after a generation."""

    generation: int

    def __call__(self, engine: Engine) -> PackedSnapshot | None:
        """Write them to a temporary folder, and read it."""
        with tempfile.TemporaryDirectory(prefix="germline-snapshot-") as folder:
            save_snapshot(engine.weights, Path(folder), self.generation)
            return PackedSnapshot.newest(Path(folder))


@dataclass(frozen=True)
class RestoreJob:
    """Bring freshly loaded weights to the state after the last of some updates.

    `snapshots` is a folder that the engine can read, or the newest snapshot of one that it cannot.
    """

    entries: Sequence[JournalEntry]
    snapshots: Path | PackedSnapshot | None
    base_digest: str

    def __call__(self, engine: Engine) -> str:
        """Return the verified digest; only the updates after a snapshot are replayed."""
        last = len(self.entries) - 1
        with ExitStack() as stack:
            folder = self.snapshots
            if isinstance(folder, PackedSnapshot):
                unpacked = stack.enter_context(tempfile.TemporaryDirectory())
                folder.write(Path(unpacked))
                folder = Path(unpacked)
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


@dataclass(frozen=True)
class DimensionQuery:
    """How many numbers are searched."""

    def __call__(self, engine: Any) -> int:
        """Return their number, of anything with masters."""
        return int(engine.weights.dimension)


@dataclass(frozen=True)
class WeightsQuery:
    """How many weights a token is multiplied by: all but an embedding that is looked up alone."""

    def __call__(self, engine: Any) -> int:
        """Return their number; of weights without a list of tensors, that of the searched ones."""
        base = getattr(engine.weights, "base", None)
        if base is None:
            return int(engine.weights.dimension)
        looked_up = ("embedding", "non_text")
        used = (one for one in base.tensors if one.kind not in looked_up or one.aliases)
        return sum(math.prod(one.shape) for one in used)


@dataclass(frozen=True)
class ScalesQuery:
    """By how much the sigma of each searched tensor differs from that of its members."""

    def __call__(self, engine: Any) -> Mapping[str, float]:
        """Return the factor of each searched tensor, by name."""
        scales: Mapping[str, float] = engine.weights.scales()
        return scales


@dataclass(frozen=True)
class LogProbabilitiesQuery:
    """The log-probability, at temperature 1, of each token of completions `[members][examples]`."""

    members: Members
    examples: Sequence[Example]
    completions: Sequence[Sequence[Completion]]

    def __call__(self, engine: Engine) -> list[list[Sequence[float]]]:
        """Return one number per token, `[members][examples][tokens]`."""
        return engine.log_probabilities(self.members, self.examples, self.completions)


@dataclass(frozen=True)
class MembersDifferQuery:
    """Whether two members with opposite noise of `LARGE_SIGMA` write or score texts differently."""

    run_seed: int

    def __call__(self, engine: Engine) -> bool:
        """Compare short greedy texts, then the log-probabilities of one of them."""
        members = [SeedPerturbation(self.run_seed, 0, 0, sign, LARGE_SIGMA) for sign in (1, -1)]
        example = Example(0, "1 + 1 =", "", chat=False)
        plus, minus = engine.generate(members, [example], Decoding(max_new_tokens=8))
        if plus[0].tokens != minus[0].tokens:
            return True
        first, second = engine.log_probabilities(members, [example], [plus, plus])
        return [*first[0]] != [*second[0]]
