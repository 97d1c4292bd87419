"""Engines elsewhere as one fleet: the same updates for all, digests compared, what differs rebuilt.

Cells go to whoever is free. An engine counts as equal while its digest is the one the others have:
it is asked after every evaluation (a deviating engine's cells are played again by others, before
anything is learned from them) and after every update. A newcomer loads the base model, takes over a
peer's state or the newest snapshot, and replays the updates after it, verified by digest.

A generation may close when a share of the members is in (`quorum`): the engines still at the others
are late. They finish in their own time, apply what they missed, and take part again.

Known limit: masters are compared, serving copies are not.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from germline.config import Cell
from germline.fleet.carrier import Carrier, SharedDisk
from germline.fleet.crew import Crew, Seat
from germline.fleet.elsewhere import EngineFault
from germline.fleet.follower import Member, as_told, by_name
from germline.fleet.jobs import (
    Apply,
    CatchUp,
    Digest,
    Dimension,
    Job,
    LogProbabilities,
    Play,
    Restore,
    Scales,
)
from germline.fleet.quorum import Place, Quorum
from germline.fleet.state import State
from germline.noise import NOISE_VERSION
from germline.protocols import Members, Texts
from germline.record import Entry
from germline.rollout import Graders, OpenCell, PlayedCell, centre_cell, cut, gather
from germline.signals import UpdateSize
from germline.traffic import Traffic
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    Move,
    Perturbation,
    Population,
    Update,
)

ATTEMPTS = 2
"""Engines that disagree are rebuilt and asked again, so often in all; then the run stops."""


class RemoteFleet:
    """Several engines elsewhere; the graders are here.

    Args:
        crew: the engines.
        graders: here.
        cell: size of the pieces that are handed out.
        quorum: share of the members with which a generation may close.
        carrier: takes states to newcomers and to the run directory.
        followed: whether the engines follow a search by coordinates, and are sent names for them.

    Raises:
        GermlineError: an engine cannot be loaded, or they loaded different weights.
    """

    def __init__(
        self,
        crew: Crew,
        graders: Graders,
        cell: Cell,
        quorum: float = 1.0,
        carrier: Carrier | None = None,
        *,
        followed: bool = False,
    ) -> None:
        self.crew = crew
        self.graders = graders
        self.cell = cell
        self.quorum = quorum
        self._carrier = carrier or SharedDisk()
        self._followed = followed
        try:
            self._base_digest = _one(crew.muster())
        except BaseException:
            crew.close()
            raise
        self._entries: list[Entry] = []
        self._snapshots: Path | None = None
        self._applied: Update | Move | None = None  # an update whose digest is not agreed on yet
        self._left_at: dict[Seat, int] = {}  # how many updates who is late has applied
        self._told = Traffic()

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Play the batch with every member, or with a quorum of them, and grade it."""
        paired = 2 if population.antithetic else 1
        return self._play(population.members, batch, self.cell, decoding, paired=paired)

    def evaluate_centre(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play with the centre alone: one member, so a cell holds as many rows in examples."""
        return self._play([None], examples, centre_cell(self.cell), decoding)

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Let members read completions, on one engine: all have the same weights."""
        self._settle()
        asked = [replace(one, answer="", facts={}) for one in examples]
        found: list[list[Sequence[float]]] = self._by_anyone(
            LogProbabilities(self._named(members), asked, completions)
        )
        return found

    def apply(self, update: Update | Move) -> UpdateSize | None:
        """Apply the update on every engine, and return what one of them measured of it."""
        self._settle()
        self._applied = update = as_told(update) if self._followed else update
        return next(iter(self.crew.everyone(Apply(update)).values()), None)

    def scales(self) -> Mapping[str, float]:
        """Return by how much each searched tensor's sigma differs from that of its members."""
        self._settle()
        scales: Mapping[str, float] = self._by_anyone(Scales())
        return scales

    def dimension(self) -> int:
        """Return how many numbers are searched."""
        return int(self._by_anyone(Dimension()))

    def digest(self) -> str:
        """Return the digest all engines agree on.

        Raises:
            GermlineError: they disagree, also after they were rebuilt.
        """
        self._settle()
        return self._agreed()

    def save_snapshot(self, folder: Path, generation: int, keep: int) -> None:
        """Let one engine write masters and moments, as they are after `generation`."""
        self._settle()
        self._carrier.to_folder(self._by_anyone, folder, generation, keep)
        self._snapshots = folder

    def restore(self, entries: Sequence[Entry], folder: Path | None, base_digest: str) -> None:
        """Bring every engine from the base weights to the state after the last entry."""
        if self._followed:
            entries = [replace(one, update=as_told(one.update)) for one in entries]
        self.crew.everyone(Restore(entries, self._state_in(folder), base_digest))
        self._base_digest = base_digest
        self._entries = list(entries)
        self._snapshots = folder

    def traffic(self) -> Traffic:
        """Return what travelled since this was last asked."""
        before, self._told = self._told, self.crew.traffic
        return self._told - before

    def close(self) -> None:
        """End the engines."""
        self.crew.close()

    def _play(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        cell: Cell,
        decoding: Decoding,
        paired: int = 0,
    ) -> Evaluation:
        """Play everything; of members in groups of `paired`, a quorum (0: all) will do."""
        self._settle()
        started = time.perf_counter()
        generated_s = 0.0
        cells = _by_place(cut(members, examples, cell))
        asked = [replace(one, answer="", facts={}) for one in examples]  # what engines need of them
        jobs = {
            place: Play(self._named(one.members), one.examples, decoding)
            for place, one in _by_place(cut(members, asked, cell)).items()
        }
        # Large ones first: whoever ends last then has little left to do.
        order = sorted(cells, key=lambda place: -_size(jobs[place]))
        share = self.quorum if paired else 1.0
        quorum = Quorum([*cells.values()], len(members), share, paired or 1, self.crew.clock)
        played: dict[Place, tuple[Seat, PlayedCell]] = {}
        deviations = 0
        while (unplayed := [p for p in order if p not in played]) and not quorum.is_closed(played):
            self._bring_in_newcomers()
            handed = self.crew.hand_out(
                {place: jobs[place] for place in unplayed}, lambda: quorum.closes(played)
            )
            for place, seat, completions in handed:
                played[place] = (seat, cells[place].played(completions, self.graders))
                seat.falls = 0
            for seat in self.crew.late():
                self._left_at.setdefault(seat, len(self._entries))
            generated_s = time.perf_counter() - started
            deviating = self._replace_deviating()
            deviations += bool(deviating)
            if deviations == ATTEMPTS:
                raise GermlineError(
                    f"fleet: engines changed their weights while they played, {deviations} times "
                    "in one evaluation: playing must leave no trace (or the memory of this machine "
                    "cannot be relied on). The generations before are recorded"
                )
            for place in [place for place, (seat, _) in played.items() if seat in deviating]:
                del played[place]
        found = [one for _, one in played.values()]
        return quorum.of(gather(found, len(members), examples, generated_s), played)

    def _named(self, members: Sequence[Perturbation | None]) -> Sequence[Member]:
        return [by_name(one) for one in members] if self._followed else members

    def _replace_deviating(self) -> set[Seat]:
        """Compare everyone with the digest the fleet has, and start those anew that differ."""
        expected = self.digest()
        digests = self.crew.everyone(Digest())
        deviating = {seat for seat, digest in digests.items() if digest != expected}
        for seat in deviating:
            self.crew.replace(seat, _differs(digests[seat], expected))
        return deviating

    def _settle(self) -> None:
        """Agree on the digest after the last update, by rebuilding where engines differ."""
        if self._applied is None:
            return
        update = self._applied
        for _ in range(ATTEMPTS):
            # Whoever is standing has applied the update; newcomers get it with its digest, later.
            while not (digests := self.crew.everyone(Digest())):
                self._bring_in_newcomers()
                self.crew.everyone(Apply(update))
            agreed, votes = Counter(digests.values()).most_common(1)[0]
            majority = 2 * votes > len(digests)
            for seat, digest in digests.items():
                if not majority or digest != agreed:
                    self.crew.replace(seat, _differs(digest, agreed))
            if majority:
                self._entries.append(Entry(update, agreed, NOISE_VERSION))
                self._applied = None
                return
        raise GermlineError(
            f"fleet: the engines disagree about the weights after generation {update.generation}, "
            "also after they were rebuilt: the arithmetic or the memory of this machine cannot be "
            "relied on. The generations before are recorded; resume the run with fleet=local, "
            "or elsewhere"
        )

    def _bring_in_newcomers(self) -> None:
        """Give the weights of the fleet to engines that were started anew, or were late."""
        if not (newcomers := self.crew.newcomers()):
            return
        with contextlib.ExitStack() as stack:
            fresh = any(not one.behind for one in newcomers)
            state = self._newest_state(stack) if fresh else None
            restore = Restore(self._entries, state, self._base_digest)
            self.crew.welcome(lambda seat: self._missed(seat) if seat.behind else restore)
        self._left_at = {seat: at for seat, at in self._left_at.items() if seat.state == "late"}

    def _newest_state(self, stack: contextlib.ExitStack) -> State | None:
        """Return a peer's state; where no peer can give it, that of the run's own snapshots."""
        if self._entries and self.crew.standing():
            with contextlib.suppress(EngineFault, GermlineError):
                peer = self._carrier.from_peer(self._by_anyone, len(self._entries) - 1)
                return stack.enter_context(peer)
        return self._state_in(self._snapshots)

    def _missed(self, seat: Seat) -> Job:
        return CatchUp(self._entries[self._left_at[seat] :], self._agreed())

    def _agreed(self) -> str:
        return self._entries[-1].digest if self._entries else self._base_digest

    def _state_in(self, folder: Path | None) -> State | None:
        return self._carrier.from_folder(folder) if folder else None

    def _by_anyone(self, job: Job) -> Any:
        while not (answers := [answer for _, _, answer in self.crew.hand_out({"it": job})]):
            self._bring_in_newcomers()
        return answers[0]


def _one(digests: dict[Seat, str]) -> str:
    found = sorted(set(digests.values()))
    if len(found) != 1:
        raise GermlineError(
            f"fleet: the engines loaded different weights ({', '.join(one[:16] for one in found)}):"
            " the model changed while it was loaded; start again"
        )
    return found[0]


def _differs(digest: str, expected: str) -> str:
    return f"its weights have digest {digest[:16]}, those of the fleet {expected[:16]}"


def _by_place(cells: Sequence[OpenCell]) -> dict[Place, OpenCell]:
    return {(one.first_member, one.first_example): one for one in cells}


def _size(job: Play) -> int:
    return len(job.members) * sum(len(example.prompt) for example in job.examples)
