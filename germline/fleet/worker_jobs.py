"""What an engine elsewhere can be told to do: a job is sent to it and done there.

Seeds, coefficients, prompts and completions travel; weights never do. Every engine loads the model
itself and applies every update itself, and draws members of coordinates itself where it follows the
search. What comes back is looked at before it is believed.
"""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

from germline.checkpoint import restore, save_snapshot
from germline.fleet.engine_queries import as_table
from germline.fleet.engine_state import EngineState
from germline.fleet.mirrored_search import Member, MirroredEngine, resolve_member
from germline.protocols import Engine
from germline.record import JournalEntry
from germline.signal_types import UpdateSize
from germline.types import Completion, Decoding, Example, Finish, MeanUpdate, Update


@runtime_checkable
class EngineJob(Protocol):
    """Something an engine can do; picklable, and so is what it returns."""

    def __call__(self, engine: Engine) -> Any:
        """Do it."""

    def is_valid_result(self, answer: object) -> bool:
        """Whether this can be what it returns: garbage is a loss of the engine, not a result."""


def is_digest(answer: object) -> bool:
    """Whether this can be a digest."""
    return isinstance(answer, str) and re.fullmatch("[0-9a-f]{64}", answer) is not None


@dataclass(frozen=True)
class GenerateJob:
    """Play one microbatch.

    Attributes:
        examples: as engines see them; what graders need can be left out.
    """

    members: Sequence[Member]
    examples: Sequence[Example]
    decoding: Decoding

    def __call__(self, engine: Engine) -> list[list[Completion]]:
        """Return the completions, `[members][examples]`."""
        members = [resolve_member(one, engine) for one in self.members]
        return engine.generate(members, self.examples, self.decoding)

    def is_valid_result(self, answer: object) -> bool:
        """Whether every member completed every example."""
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
class ApplyJob:
    """Move the masters by one update."""

    update: Update | MeanUpdate

    def __call__(self, engine: Engine) -> UpdateSize | None:
        """Apply it, refresh the serving copy, and return how far the masters moved."""
        return engine.apply(self.update)

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is a measurement, or none."""
        return answer is None or isinstance(answer, UpdateSize)


@dataclass(frozen=True)
class DigestJob:
    """Say what the masters are."""

    def __call__(self, engine: Engine) -> str:
        """Return their digest."""
        return engine.weights.digest()

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is one."""
        return is_digest(answer)


@dataclass(frozen=True)
class SaveSnapshotJob:
    """Write masters and moments after a generation, keeping the newest `keep` snapshots."""

    folder: Path
    generation: int
    keep: int

    def __call__(self, engine: Engine) -> None:
        """Write it; the folder is one that whoever asked can read."""
        save_snapshot(engine.weights, self.folder, self.generation, keep=self.keep)

    def is_valid_result(self, answer: object) -> bool:
        """Whether nothing was returned."""
        return answer is None


@dataclass(frozen=True)
class RestoreJob:
    """Bring freshly loaded weights to the state after the last of some updates."""

    entries: Sequence[JournalEntry]
    state: EngineState | None
    base_digest: str

    def __call__(self, engine: Engine) -> str:
        """Return the verified digest; a state saves replaying what led there."""
        entries = (
            engine.recall(self.entries) if isinstance(engine, MirroredEngine) else self.entries
        )
        last = len(entries) - 1
        with self.state.unpacked() if self.state else nullcontext() as folder:
            digest = restore(engine.weights, entries, folder, self.base_digest, last)
        engine.refresh()
        return digest

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is the digest after the last of the updates."""
        return answer == (self.entries[-1].digest if self.entries else self.base_digest)


@dataclass(frozen=True)
class CatchUpJob:
    """Apply the updates that were missed."""

    entries: Sequence[JournalEntry]
    digest: str

    def __call__(self, engine: Engine) -> str:
        """Return the digest reached."""
        for entry in self.entries:
            engine.apply(entry.update)
        return engine.weights.digest()

    def is_valid_result(self, answer: object) -> bool:
        """Whether it is the digest of those who missed nothing."""
        return answer == self.digest
