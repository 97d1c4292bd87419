"""A remote engine, one in another process or on another host, and the jobs that it is sent.

`RemoteEngine` and `Wait` are all that processes or a cluster must offer to a worker pool.

A job carries seeds, coefficients, prompts and completions, never weights. Every engine loads the
model and applies every update itself. Read-only questions (`Fleet.query`) are jobs as well: a new
one is one function here and the method of `Engine` or `MasterWeights` that answers it.

Only an engine that was started again takes over a snapshot: 4 bytes for each searched number, and
moments. It reads the folder of snapshots, or is sent the newest one where it does not share a disk.
"""

import math
import pickle
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
    EngineLost,
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
class JobDone:
    """A job was done, with its result; after a start, the engine has loaded, with its digest."""

    value: Any


@dataclass(frozen=True)
class JobRaised:
    """A job, or loading the engine, raised a `GermlineError`, or another error: its traceback."""

    error: Exception


@dataclass(frozen=True)
class RemoteEngineLost:
    """The engine is gone, and its job with it."""

    reason: str


Outcome = JobDone | JobRaised | RemoteEngineLost


def run_and_catch(work: Callable[[], Any]) -> JobDone | JobRaised:
    """Do work in the process of the engine, and return an outcome that can be pickled."""
    try:
        return JobDone(work())
    except GermlineError as error:
        kind = EngineLost if isinstance(error, EngineLost) else GermlineError
        return JobRaised(kind(str(error)))
    except Exception:  # noqa: BLE001 - the fleet must learn of every error
        return JobRaised(RuntimeError("a remote engine raised an error\n" + traceback.format_exc()))


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine in another process or host: it does one job at a time, and can be lost any time."""

    name: str

    @property
    def waits_for_resources(self) -> bool:
        """Whether it was started and waits for resources: it is neither loading nor lost."""

    def start(self) -> None:
        """Begin to load a fresh engine and return; the outcome is `JobDone(digest)`."""

    def send(self, job: EngineJob) -> None:
        """Begin a job and return; a loss is reported as its outcome, never as an error here."""

    def stop(self) -> None:
        """Stop the engine at once, also in a job; no outcome follows."""


Wait = Callable[[Sequence[RemoteEngine], float | None], Sequence[tuple[RemoteEngine, Outcome]]]
"""Wait until one of these engines has an outcome, and return all outcomes there are.

Returns nothing after this many seconds (None: no limit), or when an engine gets its resources.
"""


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


def write_snapshot(folder: Path, generation: int, engine: Engine) -> None:
    """Write masters and moments after a generation to a folder that the fleet can read."""
    save_snapshot(engine.weights, folder, generation)


def pack_snapshot(generation: int, engine: Engine) -> PackedSnapshot | None:
    """Return masters and moments after a generation, by way of a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="germline-snapshot-") as folder:
        save_snapshot(engine.weights, Path(folder), generation)
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
class LogProbabilitiesQuery:
    """The log-probability, at temperature 1, of each token of completions `[members][examples]`."""

    members: Members
    examples: Sequence[Example]
    completions: Sequence[Sequence[Completion]]

    def __call__(self, engine: Engine) -> list[list[Sequence[float]]]:
        """Return one number per token, `[members][examples][tokens]`."""
        return engine.log_probabilities(self.members, self.examples, self.completions)


def dimension(engine: Any) -> int:
    """Return how many numbers are searched, of anything with masters."""
    return int(engine.weights.dimension)


def used_weights(engine: Any) -> int:
    """Return how many weights a token is multiplied by; without a list of tensors, the searched.

    An embedding that is looked up alone is left out.
    """
    base = getattr(engine.weights, "base", None)
    if base is None:
        return dimension(engine)
    looked_up = ("embedding", "non_text")
    used = (one for one in base.tensors if one.kind not in looked_up or one.aliases)
    return sum(math.prod(one.shape) for one in used)


def sigma_scales(engine: Any) -> Mapping[str, float]:
    """Return by which factor the sigma of each searched tensor differs from that of members."""
    scales: Mapping[str, float] = engine.weights.scales()
    return scales


def members_differ(run_seed: int, engine: Engine) -> bool:
    """Return whether two members with opposite noise of `LARGE_SIGMA` write or score differently.

    Short greedy texts are compared, then the log-probabilities of one of them.
    """
    members = [SeedPerturbation(run_seed, 0, 0, sign, LARGE_SIGMA) for sign in (1, -1)]
    example = Example(0, "1 + 1 =", "", chat=False)
    plus, minus = engine.generate(members, [example], Decoding(max_new_tokens=8))
    if plus[0].tokens != minus[0].tokens:
        return True
    first, second = engine.log_probabilities(members, [example], [plus, plus])
    return [*first[0]] != [*second[0]]
