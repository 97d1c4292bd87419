"""Engines elsewhere as one fleet: the same updates for all, digests compared, what differs rebuilt.

Microbatches go to whoever is free. An engine counts as equal while its digest is the one the others
have: it is asked after every evaluation (a deviating engine's microbatches are played again by
others, before anything is learned from them) and after every update. A newcomer loads the base
model, takes over a peer's state or the newest snapshot, and replays the updates after it, verified
by digest.

A generation may close when a share of the members is in (`quorum`): the engines still at the others
are late. They finish in their own time, apply what they missed, and take part again.

Known limit: masters are compared, serving copies are not.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from germline.comm_bytes import CommBytes
from germline.config import MicrobatchSettings
from germline.fleet.engine_queries import with_each
from germline.fleet.engine_state import EngineState
from germline.fleet.mirrored_search import Member, as_member_ref, strip_offsets
from germline.fleet.quorum import Place, Quorum
from germline.fleet.remote_engine import EngineFault
from germline.fleet.state_transfer import SharedDiskTransfer, StateTransfer
from germline.fleet.worker_jobs import (
    ApplyJob,
    CatchUpJob,
    DigestJob,
    EngineJob,
    GenerateJob,
    RestoreJob,
)
from germline.fleet.worker_pool import WorkerPool, WorkerSlot
from germline.noise import NOISE_VERSION
from germline.protocols import Answer, EngineQuery
from germline.record import JournalEntry
from germline.rollout import (
    GeneratedMicrobatch,
    GraderProtocol,
    Microbatch,
    center_microbatch,
    cut_microbatches,
    gather_rewards,
)
from germline.signal_types import UpdateSize
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
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
        microbatch: size of the pieces that are handed out.
        quorum: share of the members with which a generation may close.
        carrier: takes states to newcomers and to the run directory.
        followed: whether the engines follow a search by coordinates, and are sent names for them.

    Raises:
        GermlineError: an engine cannot be loaded, or they loaded different weights.
    """

    def __init__(
        self,
        pool: WorkerPool,
        graders: GraderProtocol,
        microbatch: MicrobatchSettings,
        quorum: float = 1.0,
        carrier: StateTransfer | None = None,
        *,
        followed: bool = False,
    ) -> None:
        self.pool = pool
        self.graders = graders
        self.microbatch = microbatch
        self.quorum = quorum
        self._carrier = carrier or SharedDiskTransfer()
        self._followed = followed
        try:
            self._base_digest = _one(pool.wait_ready())
        except BaseException:
            pool.close()
            raise
        self._entries: list[JournalEntry] = []
        self._snapshots: Path | None = None
        self._applied: Update | MeanUpdate | None = (
            None  # an update whose digest is not agreed on yet
        )
        self._left_at: dict[WorkerSlot, int] = {}  # how many updates who is late has applied
        self._told = CommBytes()

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Play the batch with every member, or with a quorum of them, and grade it."""
        paired = 2 if population.antithetic else 1
        return self._play(population.members, batch, self.microbatch, decoding, paired=paired)

    def evaluate_center(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Evaluate the center alone: one member, so a microbatch holds as many rows in examples."""
        return self._play([None], examples, center_microbatch(self.microbatch), decoding)

    def query(self, query: EngineQuery[Answer]) -> Answer:
        """Return one engine's answer to a read-only question: all have the same weights."""
        self._settle()
        query = with_each(query, "examples", _without_answer)
        if self._followed:
            query = with_each(query, "members", as_member_ref)
        answer: Answer = self._by_anyone(query)
        return answer

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update on every engine, and return what one of them measured of it."""
        self._settle()
        self._applied = update = strip_offsets(update) if self._followed else update
        return next(iter(self.pool.broadcast(ApplyJob(update)).values()), None)

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

    def restore(
        self, entries: Sequence[JournalEntry], folder: Path | None, base_digest: str
    ) -> None:
        """Bring every engine from the base weights to the state after the last entry."""
        if self._followed:
            entries = [replace(one, update=strip_offsets(one.update)) for one in entries]
        self.pool.broadcast(RestoreJob(entries, self._state_in(folder), base_digest))
        self._base_digest = base_digest
        self._entries = list(entries)
        self._snapshots = folder

    def traffic(self) -> CommBytes:
        """Return what traveled since this was last asked."""
        before, self._told = self._told, self.pool.traffic
        return self._told - before

    def close(self) -> None:
        """End the engines."""
        self.pool.close()

    def _play(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        microbatch: MicrobatchSettings,
        decoding: Decoding,
        paired: int = 0,
    ) -> Evaluation:
        """Play everything; of members in groups of `paired`, a quorum (0: all) will do."""
        self._settle()
        started = time.perf_counter()
        generated_s = 0.0
        microbatches = _by_place(cut_microbatches(members, examples, microbatch))
        asked = [_without_answer(example) for example in examples]
        jobs = {
            place: GenerateJob(self._named(one.members), one.examples, decoding)
            for place, one in _by_place(cut_microbatches(members, asked, microbatch)).items()
        }
        # Large ones first: whoever ends last then has little left to do.
        order = sorted(microbatches, key=lambda place: -_size(jobs[place]))
        share = self.quorum if paired else 1.0
        quorum = Quorum([*microbatches.values()], len(members), share, paired or 1, self.pool.clock)
        played: dict[Place, tuple[WorkerSlot, GeneratedMicrobatch]] = {}
        deviations = 0
        while (unplayed := [p for p in order if p not in played]) and not quorum.is_closed(played):
            self._bring_in_newcomers()
            handed = self.pool.dispatch(
                {place: jobs[place] for place in unplayed}, lambda: quorum.can_close(played)
            )
            for place, slot, completions in handed:
                played[place] = (
                    slot,
                    microbatches[place].with_completions(completions, self.graders),
                )
                slot.failures = 0
            for slot in self.pool.late():
                self._left_at.setdefault(slot, len(self._entries))
            generated_s = time.perf_counter() - started
            deviating = self._replace_deviating()
            deviations += bool(deviating)
            if deviations == ATTEMPTS:
                raise GermlineError(
                    f"fleet: engines changed their weights while they played, {deviations} times "
                    "in one evaluation: playing must leave no trace (or the memory of this machine "
                    "cannot be relied on). The generations before are recorded"
                )
            for place in [place for place, (slot, _) in played.items() if slot in deviating]:
                del played[place]
        found = [one for _, one in played.values()]
        return quorum.of(gather_rewards(found, len(members), examples, generated_s), played)

    def _named(self, members: Sequence[Perturbation | None]) -> Sequence[Member]:
        return [as_member_ref(one) for one in members] if self._followed else members

    def _replace_deviating(self) -> set[WorkerSlot]:
        """Compare everyone with the digest the fleet has, and start those anew that differ."""
        expected = self.digest()
        digests = self.pool.broadcast(DigestJob())
        deviating = {slot for slot, digest in digests.items() if digest != expected}
        for slot in deviating:
            self.pool.replace(slot, _differs(digests[slot], expected))
        return deviating

    def _settle(self) -> None:
        """Agree on the digest after the last update, by rebuilding where engines differ."""
        if self._applied is None:
            return
        update = self._applied
        for _ in range(ATTEMPTS):
            # Whoever is standing has applied the update; newcomers get it with its digest, later.
            while not (digests := self.pool.broadcast(DigestJob())):
                self._bring_in_newcomers()
                self.pool.broadcast(ApplyJob(update))
            agreed, votes = Counter(digests.values()).most_common(1)[0]
            majority = 2 * votes > len(digests)
            for slot, digest in digests.items():
                if not majority or digest != agreed:
                    self.pool.replace(slot, _differs(digest, agreed))
            if majority:
                self._entries.append(JournalEntry(update, agreed, NOISE_VERSION))
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
        if not (newcomers := self.pool.newcomers()):
            return
        with contextlib.ExitStack() as stack:
            fresh = any(not one.missed_updates for one in newcomers)
            state = self._newest_state(stack) if fresh else None
            restore = RestoreJob(self._entries, state, self._base_digest)
            self.pool.resync(lambda slot: self._missed(slot) if slot.missed_updates else restore)
        self._left_at = {slot: at for slot, at in self._left_at.items() if slot.state == "late"}

    def _newest_state(self, stack: contextlib.ExitStack) -> EngineState | None:
        """Return a peer's state; where no peer can give it, that of the run's own snapshots."""
        if self._entries and self.pool.ready_slots():
            with contextlib.suppress(EngineFault, GermlineError):
                peer = self._carrier.from_peer(self._by_anyone, len(self._entries) - 1)
                return stack.enter_context(peer)
        return self._state_in(self._snapshots)

    def _missed(self, slot: WorkerSlot) -> EngineJob:
        return CatchUpJob(self._entries[self._left_at[slot] :], self._agreed())

    def _agreed(self) -> str:
        return self._entries[-1].digest if self._entries else self._base_digest

    def _state_in(self, folder: Path | None) -> EngineState | None:
        return self._carrier.from_folder(folder) if folder else None

    def _by_anyone(self, job: EngineJob) -> Any:
        while not (answers := [answer for _, _, answer in self.pool.dispatch({"it": job})]):
            self._bring_in_newcomers()
        return answers[0]


def _one(digests: dict[WorkerSlot, str]) -> str:
    found = sorted(set(digests.values()))
    if len(found) != 1:
        raise GermlineError(
            f"fleet: the engines loaded different weights ({', '.join(one[:16] for one in found)}):"
            " the model changed while it was loaded; start again"
        )
    return found[0]


def _differs(digest: str, expected: str) -> str:
    return f"its weights have digest {digest[:16]}, those of the fleet {expected[:16]}"


def _without_answer(example: Example) -> Example:
    """Leave out what only graders need."""
    return replace(example, answer="", facts={})


def _by_place(microbatches: Sequence[Microbatch]) -> dict[Place, Microbatch]:
    return {(one.first_member, one.first_example): one for one in microbatches}


def _size(job: GenerateJob) -> int:
    return len(job.members) * sum(len(example.prompt) for example in job.examples)
