"""The slot of one remote engine in a worker pool: which state it is in, and what changes that.

`TRANSITIONS` is the whole state machine: (state, event) -> state. A pair that it does not have is a
mistake in the code and raises an error. Whether the engine has a job is not part of the state:
`WorkerSlot.job` says so.
"""

from dataclasses import dataclass
from enum import Enum

from germline.fleet.remote_engine import RemoteEngine
from germline.fleet.worker_jobs import EngineJob


class WorkerState(Enum):
    """What a remote engine can be used for; each value is a phrase for error messages."""

    LOADING = "loading the base model"
    LOADED = "loaded, without the updates of the run"
    READY = "ready, with the weights of the fleet"
    LATE = "late, at a job whose result is no longer awaited"
    BEHIND = "behind, with the weights of an earlier generation"
    GIVEN_UP = "given up"


class WorkerEvent(Enum):
    """What can happen to a remote engine; each value is a phrase for error messages."""

    BASE_LOADED = "it loaded the base model"
    SYNCED = "it reached the weights of the fleet"
    LEFT_BEHIND = "a generation closed without it"
    LATE_JOB_ENDED = "it finished the job that it was late with"
    LOST = "it was lost and is started again"
    LOST_TOO_OFTEN = "it was lost too often"


_STARTED = [state for state in WorkerState if state is not WorkerState.GIVEN_UP]

TRANSITIONS: dict[tuple[WorkerState, WorkerEvent], WorkerState] = {
    (WorkerState.LOADING, WorkerEvent.BASE_LOADED): WorkerState.LOADED,
    (WorkerState.LOADED, WorkerEvent.SYNCED): WorkerState.READY,
    (WorkerState.READY, WorkerEvent.LEFT_BEHIND): WorkerState.LATE,
    (WorkerState.LATE, WorkerEvent.LATE_JOB_ENDED): WorkerState.BEHIND,
    (WorkerState.BEHIND, WorkerEvent.SYNCED): WorkerState.READY,
    **{(state, WorkerEvent.LOST): WorkerState.LOADING for state in _STARTED},
    **{(state, WorkerEvent.LOST_TOO_OFTEN): WorkerState.GIVEN_UP for state in _STARTED},
}


@dataclass(eq=False)
class WorkerSlot:
    """One place in a worker pool: its engine may be replaced, the place stays.

    Attributes:
        remote: the engine.
        state: changed by `handle` alone.
        job: what the engine does now; None when it has no job, or is loading.
        failures: how often the engine was lost since it last returned a result.
        since: when the job began, by the clock of the pool.
    """

    remote: RemoteEngine
    state: WorkerState = WorkerState.LOADING
    job: EngineJob | None = None
    failures: int = 0
    since: float = 0.0

    def handle(self, event: WorkerEvent) -> None:
        """Enter the state that follows from an event.

        Raises:
            RuntimeError: the event is impossible in this state.
        """
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise RuntimeError(
                f"fleet: {self.remote.name} is {self.state.value}; impossible: {event.value}"
            )
        self.state = following
