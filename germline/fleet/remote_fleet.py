"""Several remote engines as one fleet: all apply the same updates, and their digests must agree.

Each microbatch goes to the next idle engine. The fleet compares the digests of all engines after
every evaluation (the microbatches of an engine that deviates are evaluated again by others, before
the strategy learns from them) and after every update. An engine that was started again loads the
base model, takes over the newest snapshot, and replays the updates after it, verified by digest.

A generation may close when a share of the members is evaluated (`Quorum`). The engines that still
evaluate the others are late: they finish, apply the updates that they missed, and are ready again.

Known limit: masters are compared, serving copies are not.
"""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from germline.checkpoint import newest_snapshot
from germline.config import MicrobatchSettings
from germline.fleet.local_fleet import Fleet, Key, Place, without_answer
from germline.fleet.worker_jobs import (
    ApplyJob,
    CatchUpJob,
    DigestJob,
    EngineJob,
    EpisodesJob,
    GenerateJob,
    PackedSnapshot,
    RestoreJob,
    pack_snapshot,
    write_snapshot,
)
from germline.fleet.worker_pool import WorkerPool, WorkerSlot, WorkerState
from germline.protocols import GraderProtocol, Members
from germline.record import JournalEntry
from germline.rollout import GeneratedMicrobatch, Microbatch, cut_microbatches, gather_rewards
from germline.types import Decoding, Evaluation, Example, GermlineError, MeanUpdate, Update

ATTEMPTS = 2
"""Engines that disagree are rebuilt; after this many disagreements the run stops."""

GRACE = 0.5
"""Once a quorum is evaluated, the others get this share of the time it took, then are missing."""


class Quorum:
    """When an evaluation closes whose stragglers are not waited for.

    It closes when a `share` of the members is evaluated and `GRACE` times the seconds that this
    took have passed since: members that are nearly done are waited for. A member is evaluated when
    all its examples are; those of a `group` (2: an antithetic pair) are evaluated or missing
    together.
    """

    def __init__(
        self,
        microbatches: Sequence[Microbatch],
        members: int,
        share: float,
        group: int,
        clock: Callable[[], float],
    ) -> None:
        self._microbatches = microbatches
        self._members = members
        self._share = share
        self._group = group
        self._clock = clock
        self._start = clock()
        self._reached: float | None = None

    def closing_time(self, done: Collection[Place]) -> float | None:
        """Return when to close, by the clock; None while too few members are evaluated."""
        if self._share == 1:
            return None
        evaluated = self._members - len(self.missing(done))
        if evaluated < self._share * self._members - 1e-9:
            self._reached = None
            return None
        if self._reached is None:
            self._reached = self._clock()
        return self._reached + GRACE * (self._reached - self._start)

    def is_closed(self, done: Collection[Place]) -> bool:
        """Whether the closing time has come."""
        end = self.closing_time(done)
        return end is not None and self._clock() >= end

    def missing(self, done: Collection[Place]) -> set[int]:
        """Return the members that are not evaluated, or whose pair is not."""
        groups = {
            member // self._group
            for microbatch in self._microbatches
            if microbatch.place not in done
            for member, _ in enumerate(microbatch.members, start=microbatch.first_member)
        }
        return {member for member in range(self._members) if member // self._group in groups}

    def without_missing(self, evaluation: Evaluation, done: Collection[Place]) -> Evaluation:
        """Remove the rewards (NaN) and rollouts of missing members."""
        missing = self.missing(done)
        if not missing:
            return evaluation
        rewards = evaluation.rewards.copy()
        rewards[sorted(missing)] = float("nan")
        rollouts = tuple(
            rollout for rollout in evaluation.rollouts if rollout.member not in missing
        )
        return replace(evaluation, rewards=rewards, rollouts=rollouts)


class RemoteFleet(Fleet):
    """Several remote engines, with the graders on the machine of the run.

    A generation may close with a share of the members (`quorum`). Engines that share no disk are
    sent snapshots. `on_close` is called when the engines have been stopped.
    """

    def __init__(
        self,
        pool: WorkerPool,
        graders: GraderProtocol,
        microbatch: MicrobatchSettings,
        quorum: float = 1.0,
        on_close: Callable[[], None] = lambda: None,
        *,
        shares_disk: bool = True,
    ) -> None:
        super().__init__(graders, microbatch)
        self.pool = pool
        self.quorum = quorum
        self._shares_disk = shares_disk
        self._on_close = on_close
        try:
            loaded = {*pool.wait_ready().values()}
            if len(loaded) != 1:
                raise GermlineError(
                    f"fleet: the engines loaded different weights ({', '.join(sorted(loaded))}): "
                    "the model changed while it was loaded; start again"
                )
        except BaseException:
            pool.close()
            raise
        (self._base_digest,) = loaded
        self._entries: list[JournalEntry] = []
        self._snapshots: Path | None = None
        # An update that was applied, and whose digest the engines have not agreed on yet.
        self._pending_update: Update | MeanUpdate | None = None
        self._updates_when_late: dict[WorkerSlot, int] = {}

    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply the update on every engine."""
        self._agree()
        self._pending_update = update
        self.pool.broadcast(ApplyJob(update))

    def digest(self) -> str:
        """Return the digest all engines agree on."""
        self._agree()
        return self._agreed_digest()

    def save_snapshot(self, folder: Path, generation: int) -> None:
        """Let one engine write masters and moments, as they are after `generation`."""
        if self._shares_disk:
            self._results({0: partial(write_snapshot, folder, generation)})
        else:
            self._results({0: partial(pack_snapshot, generation)})[0].write(folder)
        self._snapshots = folder
        self._forget_offsets(generation)

    def restore(
        self, entries: Sequence[JournalEntry], folder: Path | None, base_digest: str
    ) -> None:
        """Bring every engine from the base weights to the state after the last entry."""
        self._base_digest = base_digest
        self._entries = list(entries)
        self._snapshots = folder
        self.pool.broadcast(self._restore_job())
        self._forget_offsets(newest_snapshot(folder) if folder else -1)

    def close(self) -> None:
        """Stop the engines."""
        self.pool.close()
        self._on_close()

    def _evaluate_members(
        self,
        members: Members,
        examples: Sequence[Example],
        microbatch: MicrobatchSettings,
        decoding: Decoding,
        graders: GraderProtocol,
        paired: int,
    ) -> Evaluation:
        self._agree()
        started = time.perf_counter()
        generated_s = 0.0
        parts = cut_microbatches(members, examples, microbatch)
        microbatches = {part.place: part for part in parts}
        # Engines play episodes themselves, with graders of their own.
        pickled = b"" if graders.max_turns is None else pickle.dumps(graders)
        jobs = {
            place: _job(part, decoding, graders, pickled) for place, part in microbatches.items()
        }
        # Large ones first: the engines then finish at about the same time.
        order = sorted(jobs, key=lambda place: -_characters(jobs[place]))
        share = self.quorum if paired else 1.0
        quorum = Quorum(parts, len(members), share, paired or 1, self.pool.clock)
        done: dict[Place, tuple[WorkerSlot, GeneratedMicrobatch]] = {}
        deviations = 0
        while (open_places := [p for p in order if p not in done]) and not quorum.is_closed(done):
            self._resync_newcomers()
            results = self.pool.dispatch(
                {place: jobs[place] for place in open_places}, lambda: quorum.closing_time(done)
            )
            for place, slot, result in results:
                done[place] = slot, microbatches[place].generated(result, graders)
                slot.failures = 0
            for slot in self.pool.slots(WorkerState.LATE):
                self._updates_when_late.setdefault(slot, len(self._entries))
            generated_s = time.perf_counter() - started
            deviating = self._replace_deviating()
            deviations += bool(deviating)
            if deviations == ATTEMPTS:
                raise GermlineError(
                    f"fleet: engines changed their weights while they generated, {deviations} "
                    "times in one evaluation: generating must not change weights (or the memory of "
                    "this machine is faulty). Finished generations are recorded"
                )
            for place in [place for place, (slot, _) in done.items() if slot in deviating]:
                del done[place]
        generated = [one for _, one in done.values()]
        evaluation = gather_rewards(generated, (len(members), len(examples)), generated_s)
        return quorum.without_missing(evaluation, done)

    def _forget_offsets(self, generation: int) -> None:
        """Forget the steps up to a snapshot that are as large as the searched weights.

        Engines are rebuilt from the snapshot on; late engines still need the steps they missed.
        """
        last = min([generation + 1, *self._updates_when_late.values()])
        for place, entry in enumerate(self._entries[:last]):
            if isinstance(entry.update, MeanUpdate):
                update = replace(entry.update, offsets=None)
                self._entries[place] = replace(entry, update=update)

    def _replace_deviating(self) -> set[WorkerSlot]:
        """Compare every engine with the digest of the fleet, and replace those that differ."""
        expected = self.digest()
        digests = self.pool.broadcast(DigestJob())
        deviating = {slot for slot, digest in digests.items() if digest != expected}
        for slot in deviating:
            self.pool.replace(slot, _differs(digests[slot], expected))
        return deviating

    def _agree(self) -> None:
        """Agree on the digest after the last update; replace the engines that differ."""
        if self._pending_update is None:
            return
        update = self._pending_update
        for _ in range(ATTEMPTS):
            # Ready engines have applied the update; newcomers replay it later, with its digest.
            while not (digests := self.pool.broadcast(DigestJob())):
                self._resync_newcomers()
                self.pool.broadcast(ApplyJob(update))
            agreed, votes = Counter(digests.values()).most_common(1)[0]
            majority = 2 * votes > len(digests)
            for slot, digest in digests.items():
                if not majority or digest != agreed:
                    self.pool.replace(slot, _differs(digest, agreed))
            if majority:
                self._entries.append(JournalEntry(update, agreed))
                self._pending_update = None
                return
        raise GermlineError(
            f"fleet: the engines disagree about the weights after generation {update.generation}, "
            "also after they were rebuilt: the arithmetic or the memory of a machine is faulty. "
            "Finished generations are recorded; resume the run with fleet=local, or on other "
            "machines"
        )

    def _resync_newcomers(self) -> None:
        """Bring engines that were started again, or were late, to the weights of the fleet."""
        if not self.pool.await_newcomers():
            return

        def job_of(slot: WorkerSlot) -> EngineJob:
            if slot.state is not WorkerState.BEHIND:
                return self._restore_job()
            missed = self._entries[self._updates_when_late[slot] :]
            return CatchUpJob(missed, self._agreed_digest())

        self.pool.resync(job_of)
        lacking = (WorkerState.LATE, WorkerState.BEHIND)
        self._updates_when_late = {
            slot: count for slot, count in self._updates_when_late.items() if slot.state in lacking
        }

    def _restore_job(self) -> RestoreJob:
        snapshots: Path | PackedSnapshot | None = self._snapshots
        if self._snapshots and not self._shares_disk:
            snapshots = PackedSnapshot.newest(self._snapshots)
        return RestoreJob(self._entries, snapshots, self._base_digest)

    def _agreed_digest(self) -> str:
        return self._entries[-1].digest if self._entries else self._base_digest

    def _results(self, jobs: Mapping[Key, EngineJob]) -> dict[Key, Any]:
        self._agree()
        results: dict[Key, Any] = {}
        while len(results) < len(jobs):
            self._resync_newcomers()
            missing = {key: job for key, job in jobs.items() if key not in results}
            results |= {key: result for key, _, result in self.pool.dispatch(missing)}
        return results


def _job(
    microbatch: Microbatch, decoding: Decoding, graders: GraderProtocol, pickled: bytes
) -> GenerateJob | EpisodesJob:
    members, examples = microbatch.members, microbatch.examples
    if (turns := graders.max_turns) is None:
        return GenerateJob(members, [*map(without_answer, examples)], decoding)
    return EpisodesJob(members, examples, decoding, pickled, microbatch.first_member, turns)


def _differs(digest: str, expected: str) -> str:
    return f"its weights have digest {digest[:16]}, those of the fleet {expected[:16]}"


def _characters(job: GenerateJob | EpisodesJob) -> int:
    return len(job.members) * sum(len(example.prompt) for example in job.examples)
