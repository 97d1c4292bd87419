"""A remote engine with a copy of the search: it draws the members itself, as the strategy does.

Members of `sep_cma` are vectors, and so is its update of the mean: 4 bytes per searched number.
Both follow from the run seed and the utilities of the generations before. A mirrored engine has a
strategy of its own, so a member is sent as its index and the digest of its offsets, and an update
as its utilities, as in a journal.

Where numpy rounds differently than on the machine of the run, the digests differ, and the run stops
with an error that names the setting which sends members as numbers (`fleet.send_offsets`).
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
    """A reference to a member of a search: an engine with a copy of the search draws it.

    Attributes:
        index: in the population.
        digest: SHA-256 of its offsets.
    """

    generation: int
    index: int
    digest: bytes


Member = Perturbation | MemberRef | None


def as_member_ref(member: Perturbation | None) -> Member:
    """Return a member as it is sent to a mirrored engine."""
    if not isinstance(member, VectorPerturbation):
        return member
    return MemberRef(member.generation, member.index, _digest(member))


def strip_offsets(update: Update | MeanUpdate) -> Update | MeanUpdate:
    """Return an update as it is sent to a mirrored engine: the utilities without the offsets."""
    return replace(update, offsets=None) if isinstance(update, MeanUpdate) else update


def resolve_member(member: Member, engine: Engine) -> Perturbation | None:
    """Return a member as an engine generates with it; a mirrored engine draws a reference."""
    if not isinstance(member, MemberRef):
        return member
    assert isinstance(engine, MirroredEngine), "only mirrored engines are sent references"
    return engine.draw(member)


class MirroredEngine(EngineWrapper):
    """An engine with a copy of the strategy.

    Args:
        inner: generates and applies updates.
        begin: makes the strategy as it was when the run began.
    """

    def __init__(self, inner: Engine, begin: Callable[[], Strategy]) -> None:
        super().__init__(inner)
        self._begin = begin
        self._strategy = begin()
        self._population: Population | None = None

    def draw(self, reference: MemberRef) -> Perturbation:
        """Draw the member that a reference names.

        Raises:
            GermlineError: the member drawn here has other offsets.
        """
        if self._population is None or self._population.generation != reference.generation:
            self._population = self._strategy.ask(reference.generation)
        member = self._population.members[reference.index]
        if as_member_ref(member) != reference:
            raise GermlineError(
                f"fleet: an engine draws member {reference.index} of generation "
                f"{reference.generation} differently than the run: its numpy or its processor "
                "rounds differently. Set fleet.send_offsets=true to send members as numbers"
            )
        return member

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Give the update to the copy of the strategy, and apply the offsets that it returns."""
        self._population = None
        if isinstance(update, MeanUpdate):
            (update,) = self._strategy.recall([update])
        return self.inner.apply(update)

    def recall(self, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
        """Begin the search again, replay a whole journal, and return it with its offsets."""
        self._strategy, self._population = self._begin(), None
        return recall_strategy(self._strategy, entries)


def _digest(member: VectorPerturbation) -> bytes:
    return hashlib.sha256(member.offsets.tobytes()).digest()
