"""An engine elsewhere as a fleet sees it: it is started, given a job, and has an outcome.

`RemoteEngine` and `Wait` are all that processes or a cluster must offer.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from germline.fleet.worker_jobs import EngineJob
from germline.types import EngineLost, GermlineError


@dataclass(frozen=True)
class JobDone:
    """A job was done; after a start, the engine has loaded and tells the digest of its weights."""

    value: Any


@dataclass(frozen=True)
class JobRaised:
    """A job, or loading the engine, raised an error: `GermlineError`, or one with a traceback."""

    error: Exception


@dataclass(frozen=True)
class RemoteEngineLost:
    """The engine is gone, and whatever it was doing with it."""

    reason: str


Outcome = JobDone | JobRaised | RemoteEngineLost


class EngineFault(RuntimeError):
    """An error of an engine elsewhere that is no `GermlineError`; the message is its traceback."""


def run_and_catch(work: Callable[[], Any]) -> JobDone | JobRaised:
    """Do some work where the engine is, and return an outcome that can be read elsewhere."""
    try:
        return JobDone(work())
    except GermlineError as error:
        kind = EngineLost if isinstance(error, EngineLost) else GermlineError
        return JobRaised(kind(str(error)))
    except Exception:  # noqa: BLE001 - whatever it is, the fleet must hear of it
        return JobRaised(EngineFault("an engine elsewhere raised\n" + traceback.format_exc()))


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine elsewhere: it does one job at a time, and can be lost at any time."""

    name: str

    @property
    def waits_for_resources(self) -> bool:
        """Whether it was started and waits for room to run in: it is no engine yet, nor lost."""

    def start(self) -> None:
        """Begin to load a fresh engine and return; the outcome is `JobDone(digest)`."""

    def send(self, job: EngineJob) -> None:
        """Begin a job and return; a loss shows as its outcome, never here."""

    def stop(self) -> None:
        """End the engine at once, whatever it is doing; no outcome follows."""


Wait = Callable[[Sequence[RemoteEngine], float | None], Sequence[tuple[RemoteEngine, Outcome]]]
"""Wait until one of these has an outcome and return what there is.

Nothing is returned after so many seconds (None: any number), or when one of them has found room.
"""
