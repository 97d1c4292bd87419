"""An engine elsewhere that follows a search by coordinates: told what the strategy was told.

Members of such a strategy are vectors, and an update says how far its mean went: by value, 4 bytes
for each searched number. Both follow from the run seed and the utilities told so far,
so a follower has a strategy of its own: a member travels as its place and the digest of its
offsets, an update as its utilities, as in a journal.

Where numpy rounds otherwise than on the machine of the run, the digests differ, and the run stops
with the setting that sends members by value (`fleet.send_offsets`).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from germline.checkpoint import recall_strategy
from germline.protocols import Engine, Strategy
from germline.protocols.wrappers import EngineWrapper
from germline.record import JournalEntry
from germline.signal_types import UpdateSize
from germline.types import (
    GermlineError,
    MeanUpdate,
    Perturbation,
    Population,
    Update,
    VectorPerturbation,
)


@dataclass(frozen=True, slots=True)
class MemberRef:
    """A member of a coordinate strategy by name: who was told the same draws it again.

    Attributes:
        index: place in the population.
        digest: SHA-256 of its offsets.
    """

    generation: int
    index: int
    digest: bytes


Member = Perturbation | MemberRef | None


def as_member_ref(member: Perturbation | None) -> Member:
    """Return a member as it travels to a follower."""
    if not isinstance(member, VectorPerturbation):
        return member
    return MemberRef(member.generation, member.index, _digest(member))


def strip_offsets(update: Update | MeanUpdate) -> Update | MeanUpdate:
    """Return an update as it travels to a follower: what was told, and not where that led."""
    return replace(update, offsets=None) if isinstance(update, MeanUpdate) else update


def resolve_member(member: Member, engine: Engine) -> Perturbation | None:
    """Return a member as an engine plays it; one that came by name is drawn by a follower."""
    if not isinstance(member, MemberRef):
        return member
    assert isinstance(engine, MirroredEngine), "members travel by name to followers alone"
    return engine.drawn(member)


class MirroredEngine(EngineWrapper):
    """An engine with a strategy of its own.

    Args:
        inner: plays and moves.
        begin: makes the strategy as it was when the run began.
    """

    def __init__(self, inner: Engine, begin: Callable[[], Strategy]) -> None:
        super().__init__(inner)
        self._begin = begin
        self._strategy = begin()
        self._population: Population | None = None

    def drawn(self, name: MemberRef) -> Perturbation:
        """Draw a member that came by name.

        Raises:
            GermlineError: drawn here, it has other offsets.
        """
        if self._population is None or self._population.generation != name.generation:
            self._population = self._strategy.ask(name.generation)
        member = self._population.members[name.index]
        if as_member_ref(member) != name:
            raise GermlineError(
                f"fleet: an engine draws member {name.index} of generation {name.generation} "
                "otherwise than the run: its numpy or its processor rounds otherwise. Set "
                "fleet.send_offsets=true to send members as numbers"
            )
        return member

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Be told what the strategy was told, and apply where that leads."""
        self._population = None
        if isinstance(update, MeanUpdate):
            (update,) = self._strategy.recall([update])
        return self.inner.apply(update)

    def recall(self, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
        """Begin the search anew and be told a whole journal; return it with its offsets."""
        self._strategy, self._population = self._begin(), None
        return recall_strategy(self._strategy, entries)


def _digest(member: VectorPerturbation) -> bytes:
    return hashlib.sha256(member.offsets.tobytes()).digest()
