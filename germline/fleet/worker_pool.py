"""The worker pool: hands each job to the next idle remote engine, and replaces engines that fail.

An engine is lost when its process or actor ends, or when it hangs. The pool starts it again in the
background, and its job is left for another engine; it becomes ready again once the fleet has
brought its weights up to date. An engine that is lost `MAX_LOSSES`
times without a result in between is given up, and the run stops when every engine is given up. An
error that an engine *raises* is no loss, because the engine would raise it again: the pool raises
it here, except for `EngineLost`, by which an engine says that what it runs on is gone.

An engine that waits for resources (a cluster that is full, a node that was removed) does not block
the others: it joins when it has loaded.

A slot goes from LOADING over LOADED to READY; from there, if its job is no longer awaited, over
LATE and BEHIND back to READY; from any state, if the engine is lost, to LOADING or GIVEN_UP.

Known limit: there is no timeout for loading the base model and for catching up.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from germline.fleet.worker_jobs import (
    EngineJob,
    JobDone,
    JobRaised,
    Outcome,
    RemoteEngine,
    RemoteEngineLost,
    Wait,
)
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

MAX_LOSSES = 3
"""An engine lost this often, without a result in between, is not started again."""

Key = TypeVar("Key")


class WorkerState(Enum):
    """What a remote engine can be used for."""

    LOADING = "loading the base model"
    LOADED = "loaded, without the updates of the run"
    READY = "ready, with the weights of the fleet"
    LATE = "late, at a job whose result is no longer awaited"
    BEHIND = "behind, with the weights of an earlier generation"
    GIVEN_UP = "given up"


NEWCOMERS = (WorkerState.LOADED, WorkerState.BEHIND)
"""They lack updates of the fleet."""


@dataclass(eq=False)
class WorkerSlot:
    """One place in a worker pool: its engine may be replaced, the place stays.

    Attributes:
        state: changed by the pool alone.
        job: what the engine does now; None when it has no job, or is loading.
        failures: how often the engine was lost since it last returned a result.
        since: when the job began, by the clock of the pool.
    """

    remote: RemoteEngine
    state: WorkerState = WorkerState.LOADING
    job: EngineJob | None = None
    failures: int = 0
    since: float = 0.0


class WorkerPool:
    """Remote engines, started together.

    Args:
        remotes: the engines.
        wait: waits for their outcomes.
        placement_timeout_s: longest wait for resources while the pool cannot go on without them.
        job_timeout_s: time after which an engine at a job counts as hung; None: never.
        resources_report: returns what the engines need and what there is, for an error message.
        clock: in seconds.
    """

    def __init__(
        self,
        remotes: Sequence[RemoteEngine],
        wait: Wait,
        *,
        placement_timeout_s: float = 30.0,
        job_timeout_s: float | None = None,
        resources_report: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._slots = [WorkerSlot(remote) for remote in remotes]
        self._wait = wait
        self._placement_timeout_s = placement_timeout_s
        self._resources_report = resources_report
        self._job_timeout_s = job_timeout_s
        self._starting = True
        self._last_loss = ""
        self._blocked_since: float | None = None
        for slot in self._slots:
            slot.remote.start()

    def wait_ready(self) -> dict[WorkerSlot, str]:
        """Wait until the engines have loaded; make them ready and return their digests.

        What loading an engine raises is raised here.
        """
        digests: dict[WorkerSlot, str] = {}
        while self.slots(WorkerState.LOADING):
            for slot, _, outcome in self._outcomes():
                digests[slot] = _value(outcome)
        self._starting = False
        for slot in self.slots(WorkerState.LOADED):
            slot.state = WorkerState.READY
        return {slot: digests[slot] for slot in self.ready_slots()}

    def ready_slots(self) -> list[WorkerSlot]:
        """Return the engines that have the weights of the fleet."""
        return self.slots(WorkerState.READY)

    def slots(self, *states: WorkerState) -> list[WorkerSlot]:
        """Return the engines in one of these states."""
        return [slot for slot in self._slots if slot.state in states]

    def await_newcomers(self) -> list[WorkerSlot]:
        """Return the newcomers; with no engine ready, wait for all that will become newcomers.

        A single engine should not decide alone what the weights are.
        """
        while not self.ready_slots():
            coming = self.slots(WorkerState.LOADING, WorkerState.LATE)
            if self.slots(*NEWCOMERS) and all(slot.remote.waits_for_resources for slot in coming):
                break
            self._outcomes()
        return self.slots(*NEWCOMERS)

    def resync(self, job_of: Callable[[WorkerSlot], EngineJob]) -> None:
        """Send every newcomer the job that gives it the weights of the fleet; make it ready."""
        jobs = {slot: job_of(slot) for slot in self.slots(*NEWCOMERS)}
        for slot, job in jobs.items():
            self._send(slot, job)
        while any(slot.job is job for slot, job in jobs.items()):
            for slot, finished, outcome in self._outcomes():
                if finished is None or finished is not jobs.get(slot):
                    continue
                if isinstance(outcome, JobRaised):
                    self.replace(slot, str(outcome.error))
                else:
                    slot.state = WorkerState.READY
                    log.warning("fleet: %s is back", slot.remote.name)

    def dispatch(
        self, jobs: Mapping[Key, EngineJob], deadline: Callable[[], float | None] = lambda: None
    ) -> Iterator[tuple[Key, WorkerSlot, Any]]:
        """Hand each job to the next idle engine; yield key, engine and result as they arrive.

        A job whose engine was lost is not yielded, nor is one that no engine was ready for: the
        caller dispatches it again.

        Once all jobs are begun, they are awaited until the `deadline`, by the clock of the pool;
        engines that are still at a job then are late. What a job raises is raised here.
        """
        waiting = deque(jobs)
        keys: dict[WorkerSlot, Key] = {}
        while (waiting or keys) and self.ready_slots():
            self._begin(waiting, keys, jobs)
            outcomes = self._outcomes(None if waiting else deadline())
            keys = {slot: key for slot, key in keys.items() if slot.state is WorkerState.READY}
            done = [
                (keys.pop(slot), slot, outcome) for slot, _, outcome in outcomes if slot in keys
            ]
            # Before the caller handles the results: engines are not idle meanwhile.
            self._begin(waiting, keys, jobs)
            for key, slot, outcome in done:
                yield key, slot, _value(outcome)
            end = deadline()
            if not waiting and end is not None and self.clock() >= end:
                for slot in keys:
                    slot.state = WorkerState.LATE
                return

    def _begin(
        self, waiting: deque[Key], keys: dict[WorkerSlot, Key], jobs: Mapping[Key, EngineJob]
    ) -> None:
        """Send waiting jobs to idle engines, and note which engine has which."""
        for slot in self.ready_slots():
            if waiting and slot.job is None:
                keys[slot] = waiting.popleft()
                self._send(slot, jobs[keys[slot]])

    def broadcast(self, job: EngineJob) -> dict[WorkerSlot, Any]:
        """Send a job to every ready engine; return the results of those that are still ready."""
        results: dict[WorkerSlot, Any] = {}
        asked: set[WorkerSlot] = set()
        while any(slot not in results for slot in self.ready_slots()):
            for slot in self.ready_slots():
                if slot not in asked and slot.job is None:
                    asked.add(slot)
                    self._send(slot, job)
            for slot, finished, outcome in self._outcomes():
                if finished is job:
                    results[slot] = _value(outcome)
        return {slot: results[slot] for slot in self.ready_slots()}

    def replace(self, slot: WorkerSlot, reason: str) -> None:
        """Stop an engine and start a fresh one in its slot."""
        slot.remote.stop()
        self._lose(slot, reason)

    def close(self) -> None:
        """Stop all engines."""
        for slot in self._slots:
            slot.remote.stop()

    def _send(self, slot: WorkerSlot, job: EngineJob) -> None:
        slot.job, slot.since = job, self.clock()
        slot.remote.send(job)

    def _outcomes(
        self, until: float | None = None
    ) -> list[tuple[WorkerSlot, EngineJob | None, JobDone | JobRaised]]:
        """Wait for outcomes, replace lost engines, and return the rest; loading has no job.

        An outcome that is no longer awaited (of an evaluation that raised an error) comes with a
        job that the caller does not know, and the caller ignores it.
        """
        busy = [s for s in self._slots if s.job is not None or s.state is WorkerState.LOADING]
        if not busy:
            raise self._all_given_up()
        ends = [self._placement_deadline(busy), until, *map(self._hang_deadline, busy)]
        end = min((moment for moment in ends if moment is not None), default=None)
        timeout = None if end is None else max(0.0, end - self.clock())
        slots = {id(slot.remote): slot for slot in busy}
        finished = []
        for remote, outcome in self._wait([slot.remote for slot in busy], timeout):
            slot = slots[id(remote)]
            job, slot.job = slot.job, None
            if accepted := self._accepted(slot, job, outcome):
                finished.append((slot, job, accepted))
        for slot in busy:
            deadline = self._hang_deadline(slot)
            if slot.job and deadline is not None and self.clock() >= deadline:
                seconds = self.clock() - slot.since
                self.replace(slot, f"it hung: {seconds:.1f} s at a job (fleet.job_timeout_s)")
        return finished

    def _accepted(
        self, slot: WorkerSlot, job: EngineJob | None, outcome: Outcome
    ) -> JobDone | JobRaised | None:
        """Return an outcome that the caller may use; replace the engine where there is none."""
        if isinstance(outcome, RemoteEngineLost):
            self._lose(slot, outcome.reason)
            return None
        if isinstance(outcome, JobRaised):
            is_loss = job is None or isinstance(outcome.error, EngineLost)
            if is_loss and not self._starting:
                self.replace(slot, str(outcome.error))
                return None
        if job is None:
            slot.state = WorkerState.LOADED
        elif slot.state is WorkerState.LATE:
            slot.state = WorkerState.BEHIND
        return outcome

    def _hang_deadline(self, slot: WorkerSlot) -> float | None:
        """Return when an engine counts as hung; None: it is not watched."""
        is_watched = slot.job and slot.state in (WorkerState.READY, WorkerState.LATE)
        return slot.since + self._job_timeout_s if is_watched and self._job_timeout_s else None

    def _placement_deadline(self, busy: Sequence[WorkerSlot]) -> float | None:
        """Return until when to wait for resources without which the pool cannot go on."""
        waiting = [slot for slot in busy if slot.remote.waits_for_resources]
        if self._starting:
            blocked = bool(waiting)
        else:
            usable = self.ready_slots() or self.slots(*NEWCOMERS)
            blocked = len(waiting) == len(busy) and not usable
        if not blocked:
            self._blocked_since = None
            return None
        now = self.clock()
        self._blocked_since = now if self._blocked_since is None else self._blocked_since
        end = self._blocked_since + self._placement_timeout_s
        if now >= end:
            raise GermlineError(
                f"fleet: engines without resources to run on: {len(waiting)}. "
                f"{self._resources_report()}"
            )
        return end

    def _lose(self, slot: WorkerSlot, reason: str) -> None:
        slot.job = None
        slot.failures += 1
        self._last_loss = f"{slot.remote.name}: {reason}"
        if slot.failures < MAX_LOSSES:
            log.warning("fleet: lost %s; it is started again", self._last_loss)
            slot.state = WorkerState.LOADING
            slot.remote.start()
            return
        log.warning("fleet: lost %s; after %d times it is given up", self._last_loss, MAX_LOSSES)
        slot.state = WorkerState.GIVEN_UP
        if len(self.slots(WorkerState.GIVEN_UP)) == len(self._slots):
            raise self._all_given_up()

    def _all_given_up(self) -> GermlineError:
        return GermlineError(
            f"fleet: every engine was lost {MAX_LOSSES} times in a row; the last was "
            f"{self._last_loss}. Finished generations are recorded: mend the cause, then resume "
            "the run"
        )


def _value(outcome: JobDone | JobRaised) -> Any:
    if isinstance(outcome, JobRaised):
        raise outcome.error
    return outcome.value
