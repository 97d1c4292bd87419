"""The jobs that are sent to a remote engine, besides the read-only ones of `engine_queries`.

A job carries seeds, coefficients, prompts and completions, never weights. Every engine loads the
model and applies every update itself. The worker pool checks each result (`is_valid_result`) before
the fleet uses it.
"""

import pickle
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

from germline.checkpoint import restore, save_snapshot
from germline.episodes import play_episodes
from germline.fleet.engine_queries import as_table
from germline.graders.pool import GraderPool, GraderSettings
from germline.protocols import Engine, Members
from germline.record import JournalEntry
from germline.signal_types import UpdateSize
from germline.types import Completion, Decoding, Example, Finish, MeanUpdate, Rollout, Update


@runtime_checkable
class EngineJob(Protocol):
    """Work for an engine; the job and its result are picklable."""

    def __call__(self, engine: Engine) -> Any:
        """Do the work, and return the result."""

    def is_valid_result(self, answer: object) -> bool:
        """Whether an object is a possible result: another one counts as the loss of the engine."""


@runtime_checkable
class EngineState(Protocol):
    """Weights and moments after some update, where other engines can read them; picklable."""

    def unpacked(self) -> AbstractContextManager[Path]:
        """Yield a folder of snapshots on the machine where this is called."""


def is_digest(answer: object) -> bool:
    """Whether an object is the text of a SHA-256 digest."""
    return isinstance(answer, str) and re.fullmatch("[0-9a-f]{64}", answer) is not None


@dataclass(frozen=True)
class GenerateJob:
    """Generate the completions of one microbatch.

    Attributes:
        examples: without answers and facts, which only graders need.
    """

    members: Members
    examples: Sequence[Example]
    decoding: Decoding

    def __call__(self, engine: Engine) -> list[list[Completion]]:
        """Return the completions, `[members][examples]`."""
        return engine.generate(self.members, self.examples, self.decoding)

    def is_valid_result(self, answer: object) -> bool:
        """Whether there is a completion of every member for every example."""
        rows = as_table(answer, len(self.members), len(self.examples))
        return rows is not None and all(self._is_completion(one) for row in rows for one in row)

    def _is_completion(self, one: Any) -> bool:
        return (
            isinstance(one, Completion)
            and [type(one.text), type(one.tokens), type(one.prompt_tokens)] == [str, tuple, int]
            and len(one.tokens) <= self.decoding.max_new_tokens
            and all(isinstance(token, int) for token in one.tokens)
            and one.finish in get_args(Finish)
        )


@dataclass(frozen=True)
class EpisodesJob:
    """Play the episodes of one microbatch beside the engine.

    The environments run in grader processes on the engine's machine, because an episode has a
    message for every turn of the model.

    Attributes:
        examples: with answers and facts, which environments need.
        graders: of the task, pickled: the same bytes are the same graders.
        first_member: index of the first member in the population.
        max_turns: most turns of the model in one episode.
    """

    members: Members
    examples: Sequence[Example]
    decoding: Decoding
    graders: bytes
    first_member: int
    max_turns: int = 1

    def __call__(self, engine: Engine) -> list[list[Rollout]]:
        """Return the rollouts, `[members][examples]`, with members counted from 0."""
        graders = _grader_pool(self.graders)
        return play_episodes(
            engine, graders, self.members, self.examples, self.decoding, self.first_member
        )

    def is_valid_result(self, answer: object) -> bool:
        """Whether there is a rollout of every member for every example."""
        rows = as_table(answer, len(self.members), len(self.examples))
        return rows is not None and all(
            isinstance(one, Rollout) and one.example == example.index
            for row in rows
            for one, example in zip(row, self.examples, strict=True)
        )


@lru_cache(maxsize=1)
def _grader_pool(settings: bytes) -> GraderPool:
    """Return the graders of this process; another task's graders are made again."""
    made: GraderSettings = pickle.loads(settings)
    return made.make()


@dataclass(frozen=True)
class ApplyJob:
    """Apply one update to the masters."""

    update: Update | MeanUpdate

    def __call__(self, engine: Engine) -> UpdateSize | None:
        """Apply it, refresh the serving copy, and return the size of the step."""
        return engine.apply(self.update)

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is the size of a step, or None."""
        return answer is None or isinstance(answer, UpdateSize)


@dataclass(frozen=True)
class DigestJob:
    """Return the digest of the masters."""

    def __call__(self, engine: Engine) -> str:
        """Return their digest."""
        return engine.weights.digest()

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is a digest."""
        return is_digest(answer)


@dataclass(frozen=True)
class SaveSnapshotJob:
    """Write masters and moments after a generation, keeping the newest `keep` snapshots."""

    folder: Path
    generation: int
    keep: int

    def __call__(self, engine: Engine) -> None:
        """Write it to a folder that the fleet can read."""
        save_snapshot(engine.weights, self.folder, self.generation, keep=self.keep)

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is None."""
        return answer is None


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

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is the digest after the last of the updates."""
        return answer == (self.entries[-1].digest if self.entries else self.base_digest)


@dataclass(frozen=True)
class CatchUpJob:
    """Apply the updates that a late engine missed."""

    entries: Sequence[JournalEntry]
    digest: str

    def __call__(self, engine: Engine) -> str:
        """Return the digest reached."""
        for entry in self.entries:
            engine.apply(entry.update)
        return engine.weights.digest()

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is the digest of the fleet."""
        return answer == self.digest
