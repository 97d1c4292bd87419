"""Engines elsewhere as one fleet: the same updates for all, digests compared, what differs rebuilt.

Cells go to whoever is free. An engine counts as equal while its digest is the one the others have:
it is asked after every evaluation (a deviating engine's cells are played again by others, before
anything is learned from them) and after every update. A newcomer loads the base model, takes over a
peer's state or the newest snapshot, and replays the updates after it, verified by digest.

Known limits: an engine that hangs is waited for; masters are compared, serving copies are not.
"""

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from germline.config import Cell
from germline.fleet.crew import Crew, EngineFault, Seat
from germline.fleet.jobs import Apply, Digest, Dimension, Job, Play, Restore, SaveSnapshot, Scales
from germline.noise import NOISE_VERSION
from germline.record import Entry
from germline.rollout import Graders, PlayedCell, centre_cell, cut, gather
from germline.signals import UpdateSize
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

    Raises:
        GermlineError: an engine cannot be loaded, or they loaded different weights.
    """

    def __init__(self, crew: Crew, graders: Graders, cell: Cell) -> None:
        self.crew = crew
        self.graders = graders
        self.cell = cell
        try:
            self._base_digest = _one(crew.muster())
        except BaseException:
            crew.close()
            raise
        self._entries: list[Entry] = []
        self._snapshots: Path | None = None
        self._applied: Update | Move | None = None  # an update whose digest is not agreed on yet

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Play the batch with every member and grade it."""
        return self._play(population.members, batch, self.cell, decoding)

    def evaluate_centre(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play with the centre alone: one member, so a cell holds as many rows in examples."""
        return self._play([None], examples, centre_cell(self.cell), decoding)

    def apply(self, update: Update | Move) -> UpdateSize | None:
        """Apply the update on every engine, and return what one of them measured of it."""
        self._settle()
        self._applied = update
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
        return self._entries[-1].digest if self._entries else self._base_digest

    def save_snapshot(self, folder: Path, generation: int, keep: int) -> None:
        """Let one engine write masters and moments, as they are after `generation`."""
        self._settle()
        self._by_anyone(SaveSnapshot(folder, generation, keep))
        self._snapshots = folder

    def restore(self, entries: Sequence[Entry], folder: Path | None, base_digest: str) -> None:
        """Bring every engine from the base weights to the state after the last entry."""
        self.crew.everyone(Restore(entries, folder, base_digest))
        self._base_digest = base_digest
        self._entries = list(entries)
        self._snapshots = folder

    def close(self) -> None:
        """End the engines."""
        self.crew.close()

    def _play(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        cell: Cell,
        decoding: Decoding,
    ) -> Evaluation:
        self._settle()
        started = time.perf_counter()
        generated_s = 0.0
        cells = {(one.first_member, one.first_example): one for one in cut(members, examples, cell)}
        # Large ones first: whoever ends last then has little left to do.
        order = sorted(cells, key=lambda place: -_size(cells[place].members, cells[place].examples))
        played: dict[tuple[int, int], tuple[Seat, PlayedCell]] = {}
        deviations = 0
        while unplayed := [place for place in order if place not in played]:
            self._bring_in_newcomers()
            jobs = {p: Play(cells[p].members, cells[p].examples, decoding) for p in unplayed}
            for place, seat, completions in self.crew.hand_out(jobs):
                played[place] = (seat, cells[place].played(completions, self.graders))
                seat.falls = 0
            generated_s = time.perf_counter() - started
            deviating = self._replace_deviating()
            deviations += bool(deviating)
            if deviations == ATTEMPTS:
                raise GermlineError(
                    f"fleet: engines changed their weights while they played, {deviations} times "
                    "in one evaluation: playing must leave no trace (or the memory of this machine "
                    "cannot be relied on). The generations before are recorded"
                )
            played = {p: (seat, one) for p, (seat, one) in played.items() if seat not in deviating}
        found = [one for _, one in played.values()]
        return gather(found, len(members), examples, generated_s)

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
            "relied on. The generations before are recorded; resume the run with fleet.engines=1, "
            "or elsewhere"
        )

    def _bring_in_newcomers(self) -> None:
        """Give the weights of the fleet to engines that were started anew."""
        if not self.crew.newcomers():
            return
        with tempfile.TemporaryDirectory(prefix="germline-peer-") as folder:
            source = self._snapshots
            if self._entries and self.crew.standing():
                # Shared by a file, not through this process: it may be as large as the model.
                # Where it cannot be written, the newcomers replay from the run's own snapshots.
                with contextlib.suppress(EngineFault, GermlineError):
                    self._by_anyone(SaveSnapshot(Path(folder), len(self._entries) - 1, keep=1))
                    source = Path(folder)
            self.crew.welcome(Restore(self._entries, source, self._base_digest))

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


def _size(members: Sequence[Perturbation | None], examples: Sequence[Example]) -> int:
    return len(members) * sum(len(example.prompt) for example in examples)
