"""A remote engine, one in another process or on another host, and its slot in a worker pool.

`RemoteEngine` and `Wait` are all that processes or a cluster must offer to a pool. A slot goes from
LOADING over LOADED to READY; from there, if its job is no longer awaited, over LATE and BEHIND back
to READY; from any state, if the engine is lost, to LOADING or GIVEN_UP. Whether the engine has a
job is not part of the state: `WorkerSlot.job` says so.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from germline.fleet.worker_jobs import EngineJob
from germline.types import EngineLost, GermlineError


@dataclass(frozen=True)
class JobDone:
    """A job was done, with its result; after a start, the engine has loaded, with its digest."""

    value: Any


@dataclass(frozen=True)
class JobRaised:
    """A job, or loading the engine, raised an error: `GermlineError`, or one with a traceback."""

    error: Exception


@dataclass(frozen=True)
class RemoteEngineLost:
    """The engine is gone, and its job with it."""

    reason: str


Outcome = JobDone | JobRaised | RemoteEngineLost


class EngineFault(RuntimeError):
    """An error in a remote engine that is no `GermlineError`; the message is its traceback."""


def run_and_catch(work: Callable[[], Any]) -> JobDone | JobRaised:
    """Do work in the process of the engine, and return an outcome that can be pickled."""
    try:
        return JobDone(work())
    except GermlineError as error:
        kind = EngineLost if isinstance(error, EngineLost) else GermlineError
        return JobRaised(kind(str(error)))
    except Exception:  # noqa: BLE001 - the fleet must learn of every error
        return JobRaised(EngineFault("a remote engine raised an error\n" + traceback.format_exc()))


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine in another process or host: it does one job at a time, and can be lost any time."""

    name: str

    @property
    def waits_for_resources(self) -> bool:
        """Whether it was started and waits for resources: it is neither loading nor lost."""

    def start(self) -> None:
        """Begin to load a fresh engine and return; the outcome is `JobDone(digest)`."""

    def send(self, job: EngineJob) -> None:
        """Begin a job and return; a loss is reported as its outcome, never as an error here."""

    def stop(self) -> None:
        """Stop the engine at once, also in a job; no outcome follows."""


Wait = Callable[[Sequence[RemoteEngine], float | None], Sequence[tuple[RemoteEngine, Outcome]]]
"""Wait until one of these engines has an outcome, and return all outcomes there are.

Returns nothing after this many seconds (None: no limit), or when an engine gets its resources.
"""


class WorkerState(Enum):
    """What a remote engine can be used for."""

    LOADING = "loading the base model"
    LOADED = "loaded, without the updates of the run"
    READY = "ready, with the weights of the fleet"
    LATE = "late, at a job whose result is no longer awaited"
    BEHIND = "behind, with the weights of an earlier generation"
    GIVEN_UP = "given up"


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
