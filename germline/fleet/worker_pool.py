"""Who is free and who is lost: jobs handed to engines elsewhere, the next one to whoever is free.

An engine that is lost (killed, crashed, hung, or answering garbage) is started anew in the
background, and what it was doing is still to be done; it takes part again once the fleet has
brought its weights up to date. An engine lost `FALLS` times without proving itself in between is
given up, and the run stops when none is left. What an engine *raises* is no loss: it would raise it
again, so it is raised here, unless it says that what it runs on is gone (`EngineLost`).

Engines come and go: one that waits for room (a cluster that is full, a node that was removed) is
missed by nobody while others stand, and joins as a newcomer when it has loaded.

Nothing here knows where an engine runs. Known limit: loading and catching up are waited for, as
nothing says how long they should take.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from germline.comm_bytes import CommBytes
from germline.fleet import byte_accounting
from germline.fleet.remote_engine import (
    JobDone,
    JobRaised,
    Outcome,
    RemoteEngine,
    RemoteEngineLost,
    Wait,
)
from germline.fleet.worker_jobs import EngineJob, GenerateJob, is_digest
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

FALLS = 3
"""An engine lost so often, without proving itself in between, is not started again."""

State = Literal["loading", "newcomer", "standing", "late", "given up"]
Key = TypeVar("Key")


@dataclass(frozen=True)
class PoolSettings:
    """When a worker pool begins, and when it stops waiting.

    Attributes:
        min_engines: engines that must have loaded to begin; None: all.
        placement_timeout_s: longest wait for room to run in while the crew cannot go on without, in
            seconds.
        hang_factor: an engine hangs that is at a job for so many times what the slowest of its kind
            took so far, for its size; None: however long it takes.
        hang_timeout_s: but not before so many seconds.
    """

    min_engines: int | None = None
    placement_timeout_s: float = 30.0
    hang_factor: float | None = None
    hang_timeout_s: float = 120.0


@dataclass(eq=False)
class WorkerSlot:
    """One place in a crew: whoever sits there may change, the place stays.

    Attributes:
        job: what it is at; None when it is free, or loading.
        falls: how often its engine was lost since one there last proved itself.
        since: when its job began, by the crew's clock.
        behind: whether a newcomer is one that was late: it has weights, of an earlier generation.
    """

    remote: RemoteEngine
    state: State = "loading"
    job: EngineJob | None = None
    failures: int = 0
    since: float = 0.0
    missed_updates: bool = False


class WorkerPool:
    """Engines elsewhere, started together.

    Args:
        remotes: the engines.
        wait: waits for some of them.
        terms: when to begin, and when to stop waiting.
        room: says what the engines need and what there is, where they may wait for room.
        clock: in seconds.

    Attributes:
        traffic: what traveled so far.
    """

    def __init__(
        self,
        remotes: Sequence[RemoteEngine],
        wait: Wait,
        terms: PoolSettings | None = None,
        room: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.traffic = CommBytes()
        self.clock = clock
        self._slots = [WorkerSlot(remote) for remote in remotes]
        self._wait = wait
        self._terms = terms or PoolSettings()
        self._room = room
        self._founding = True
        self._last_loss = ""
        self._slowest: dict[type[EngineJob], float] = {}
        self._slowest_row: dict[type[EngineJob], float] = {}
        self._cramped_since: float | None = None
        for slot in self._slots:
            slot.remote.start()

    def wait_ready(self) -> dict[WorkerSlot, str]:
        """Wait until the first engines have loaded; return their digests, and let them stand.

        Raises:
            GermlineError: an engine cannot be loaded, all were lost while loading, or there is no
                room for as many as are needed.
            EngineFault: loading raised something else.
        """
        digests: dict[WorkerSlot, str] = {}
        while not self._has_mustered():
            for slot, _, outcome in self._take_in():
                digests[slot] = _value(outcome)
        self._founding = False
        for slot in self._in("newcomer"):
            slot.state = "standing"
        return {slot: digests[slot] for slot in self.ready_slots()}

    def ready_slots(self) -> list[WorkerSlot]:
        """Return the engines whose weights are those of the fleet."""
        return self._in("standing")

    def late(self) -> list[WorkerSlot]:
        """Return the engines that are still at what nobody waits for any more."""
        return self._in("late")

    def newcomers(self) -> list[WorkerSlot]:
        """Return the engines that have loaded, or come back late, and lack the fleet's weights.

        With nobody standing, this waits for all of them: whoever decides then what the weights are
        should not be alone.

        Raises:
            GermlineError: every engine was given up, or there is no room for any.
        """
        while not self.ready_slots() and (self._coming() or not self._in("newcomer")):
            self._take_in()
        return self._in("newcomer")

    def resync(self, job_of: Callable[[WorkerSlot], EngineJob]) -> None:
        """Let every newcomer do what gives it the weights of the fleet, and stand."""
        jobs = {slot: job_of(slot) for slot in self._in("newcomer")}
        for slot, job in jobs.items():
            self._give(slot, job)
        while any(slot.job is job for slot, job in jobs.items()):
            for slot, finished, outcome in self._take_in():
                if finished is None or finished is not jobs.get(slot):
                    continue
                if isinstance(outcome, JobRaised):
                    self.replace(slot, str(outcome.error))
                else:
                    slot.state, slot.missed_updates = "standing", False
                    log.warning("fleet: %s is back", slot.remote.name)

    def dispatch(
        self, jobs: Mapping[Key, EngineJob], closes: Callable[[], float | None] = lambda: None
    ) -> Iterator[tuple[Key, WorkerSlot, Any]]:
        """Give each job to the next engine that is free; yield key, engine and result as they come.

        What an engine was lost over is not yielded, nor what nobody was left to do: it is still to
        be done, by those who stand then.

        Args:
            jobs: what there is to do, in the order in which it is begun.
            closes: when to wait no longer, by the crew's clock, once all jobs are begun: who is
                still at one is late.

        Raises:
            GermlineError: a job raised it, or every engine was given up.
            EngineFault: a job raised something else.
        """
        waiting = deque(jobs)
        keys: dict[WorkerSlot, Key] = {}
        while (waiting or keys) and self.ready_slots():
            self._begin(waiting, keys, jobs)
            outcomes = self._take_in(None if waiting else closes())
            keys = {slot: key for slot, key in keys.items() if slot.state == "standing"}
            done = [(keys.pop(slot), slot, one) for slot, _, one in outcomes if slot in keys]
            # Before anyone looks at what came: engines shall not wait for that.
            self._begin(waiting, keys, jobs)
            for key, slot, outcome in done:
                yield key, slot, _value(outcome)
            end = closes()
            if not waiting and end is not None and self.clock() >= end:
                for slot in keys:
                    slot.state = "late"
                return

    def _begin(
        self, waiting: deque[Key], keys: dict[WorkerSlot, Key], jobs: Mapping[Key, EngineJob]
    ) -> None:
        """Give what waits to whoever is free, and note who has what."""
        for slot in self.ready_slots():
            if waiting and slot.job is None:
                keys[slot] = waiting.popleft()
                self._give(slot, jobs[keys[slot]])

    def broadcast(self, job: EngineJob) -> dict[WorkerSlot, Any]:
        """Let everyone who stands do a job; return the results of those who lived to finish it.

        Raises:
            GermlineError: the job raised it, or every engine was given up.
            EngineFault: the job raised something else.
        """
        results: dict[WorkerSlot, Any] = {}
        asked: set[WorkerSlot] = set()
        while any(slot not in results for slot in self.ready_slots()):
            for slot in self.ready_slots():
                if slot not in asked and slot.job is None:
                    asked.add(slot)
                    self._give(slot, job)
            for slot, finished, outcome in self._take_in():
                if finished is job:
                    results[slot] = _value(outcome)
        return {slot: results[slot] for slot in self.ready_slots()}

    def replace(self, slot: WorkerSlot, reason: str) -> None:
        """Start an engine anew: the one that sat there is not what it should be.

        Raises:
            GermlineError: every engine was given up.
        """
        slot.remote.stop()
        self._fall(slot, reason)

    def close(self) -> None:
        """End all engines."""
        for slot in self._slots:
            slot.remote.stop()

    def _in(self, state: State) -> list[WorkerSlot]:
        return [slot for slot in self._slots if slot.state == state]

    def _coming(self) -> list[WorkerSlot]:
        """Return those who load or are late: sooner or later they are newcomers."""
        return [
            one
            for one in (*self._in("loading"), *self.late())
            if not one.remote.waits_for_resources
        ]

    def _has_mustered(self) -> bool:
        loading, least = self._in("loading"), self._terms.min_engines or len(self._slots)
        enough = len(self._in("newcomer")) >= least
        return not loading or (enough and all(slot.remote.waits_for_resources for slot in loading))

    def _give(self, slot: WorkerSlot, job: EngineJob) -> None:
        self.traffic += byte_accounting.sent_bytes(job)
        slot.job, slot.since = job, self.clock()
        slot.remote.send(job)

    def _take_in(
        self, until: float | None = None
    ) -> list[tuple[WorkerSlot, EngineJob | None, JobDone | JobRaised]]:
        """Wait for outcomes, replace who was lost, and return the rest; loading has no job.

        What nobody waits for any more (the microbatches of an evaluation that was broken off) comes
        with a job that the caller does not know, and is left aside.
        """
        busy = [slot for slot in self._slots if slot.job is not None or slot.state == "loading"]
        if not busy:
            raise self._nobody_left()
        ends = [self._end_of_room(busy), until, *map(self._end_of_patience, busy)]
        end = min((one for one in ends if one is not None), default=None)
        timeout = None if end is None else max(0.0, end - self.clock())
        slots = {id(slot.remote): slot for slot in busy}
        finished = []
        for remote, outcome in self._wait([slot.remote for slot in busy], timeout):
            slot = slots[id(remote)]
            job, slot.job = slot.job, None
            if believed := self._believed(slot, job, outcome):
                finished.append((slot, job, believed))
        self._lose_patience(busy)
        return finished

    def _believed(
        self, slot: WorkerSlot, job: EngineJob | None, outcome: Outcome
    ) -> JobDone | JobRaised | None:
        """Replace who was lost, in one way or another; return what the others have to say."""
        if isinstance(outcome, RemoteEngineLost):
            self._fall(slot, outcome.reason)
            return None
        if isinstance(outcome, JobRaised):
            in_vain = not self._founding and (job is None or isinstance(outcome.error, EngineLost))
            if in_vain:
                self.replace(slot, str(outcome.error))
                return None
        elif not (job.is_valid_result(outcome.value) if job else is_digest(outcome.value)):
            self.replace(slot, f"it answered garbage: {repr(outcome.value)[:80]}")
            return None
        elif job:
            self.traffic += byte_accounting.received_bytes(job, outcome.value)
            took = self.clock() - slot.since
            for known, one in ((self._slowest, took), (self._slowest_row, took / _rows(job))):
                known[type(job)] = max(one, known.get(type(job), 0.0))
        if job is None or slot.state == "late":
            slot.missed_updates = slot.state == "late"
            slot.state = "newcomer"
        return outcome

    def _end_of_patience(self, slot: WorkerSlot) -> float | None:
        """Return when an engine will have been at its job for too long."""
        terms = self._terms
        watched = slot.state in ("standing", "late") and terms.hang_factor is not None
        if slot.job is None or not watched or type(slot.job) not in self._slowest:
            return None
        return slot.since + max(
            terms.hang_timeout_s, (terms.hang_factor or 0) * self._due(slot.job)
        )

    def _due(self, job: EngineJob) -> float:
        """Return what the slowest such job took, or would have taken had it been as large."""
        kind = type(job)
        return max(self._slowest[kind], self._slowest_row[kind] * _rows(job))

    def _lose_patience(self, busy: Sequence[WorkerSlot]) -> None:
        now = self.clock()
        for slot in busy:
            end = self._end_of_patience(slot)
            if slot.job and end is not None and now >= end:
                self.replace(
                    slot,
                    f"it hung: {now - slot.since:.1f} s at what took {self._due(slot.job):.1f} s "
                    "at most so far (fleet.hang_factor, fleet.hang_timeout_s)",
                )

    def _end_of_room(self, busy: Sequence[WorkerSlot]) -> float | None:
        """Return when the crew will have waited too long for room that it needs to go on.

        Raises:
            GermlineError: that is now.
        """
        waiting = [slot for slot in busy if slot.remote.waits_for_resources]
        if self._founding:
            needed = self._terms.min_engines or len(self._slots)
            cramped = len(self._slots) - len(waiting) < needed
        else:
            ready = self.ready_slots() or self._in("newcomer")
            cramped = len(waiting) == len(busy) and not ready
        if not cramped:
            self._cramped_since = None
            return None
        now = self.clock()
        self._cramped_since = now if self._cramped_since is None else self._cramped_since
        end = self._cramped_since + self._terms.placement_timeout_s
        if now >= end:
            raise GermlineError(f"fleet: {len(waiting)} engines found no room: {self._room()}")
        return end

    def _fall(self, slot: WorkerSlot, reason: str) -> None:
        slot.job, slot.missed_updates = None, False
        slot.failures += 1
        self._last_loss = f"{slot.remote.name}: {reason}"
        if slot.failures < FALLS:
            log.warning("fleet: lost %s; it is started again", self._last_loss)
            slot.state = "loading"
            slot.remote.start()
            return
        log.warning("fleet: lost %s; after %d times it is given up", self._last_loss, FALLS)
        slot.state = "given up"
        if len(self._in("given up")) == len(self._slots):
            raise self._nobody_left()

    def _nobody_left(self) -> GermlineError:
        return GermlineError(
            f"fleet: every engine was lost {FALLS} times in a row; the last was "
            f"{self._last_loss}. The generations before are recorded: mend the cause, then resume "
            "the run"
        )


def _rows(job: EngineJob) -> int:
    """Return the size of a job: playing takes the longer the more is played."""
    return len(job.members) * len(job.examples) if isinstance(job, GenerateJob) else 1


def _value(outcome: JobDone | JobRaised) -> Any:
    if isinstance(outcome, JobRaised):
        raise outcome.error
    return outcome.value
