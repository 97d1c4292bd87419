"""Who is free and who is lost: jobs handed to engines elsewhere, the next one to whoever is free.

An engine that is lost (killed, crashed) is started anew in the background, and what it was doing is
still to be done; it takes part again once the fleet has brought its weights up to date. An engine
lost `FALLS` times without proving itself in between is given up, and the run stops when none is
left. What an engine *raises* is no loss: it would raise it again, so it is raised here.

Nothing here knows where an engine runs: `Remote` is all that processes or a cluster must offer.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from germline.fleet.jobs import Job
from germline.types import GermlineError

log = logging.getLogger(__name__)

FALLS = 3
"""An engine lost so often, without proving itself in between, is not started again."""


@dataclass(frozen=True)
class Done:
    """A job was done; after a start, the engine has loaded and tells the digest of its weights."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """A job, or loading the engine, raised an error: `GermlineError`, or one with a traceback."""

    error: Exception


@dataclass(frozen=True)
class Lost:
    """The engine is gone, and whatever it was doing with it."""

    reason: str


Outcome = Done | Raised | Lost


class EngineFault(RuntimeError):
    """An error of an engine elsewhere that is no `GermlineError`; the message is its traceback."""


@runtime_checkable
class Remote(Protocol):
    """An engine elsewhere: it does one job at a time, and can be lost at any time."""

    name: str

    def start(self) -> None:
        """Begin to load a fresh engine and return; the outcome is `Done(digest)`."""

    def send(self, job: Job) -> None:
        """Begin a job and return; a loss shows as its outcome, never here."""

    def stop(self) -> None:
        """End the engine at once, whatever it is doing; no outcome follows."""


Wait = Callable[[Sequence[Remote]], Sequence[tuple[Remote, Outcome]]]
"""Wait until one of these has an outcome, and return what there is."""

State = Literal["loading", "newcomer", "standing", "given up"]
Key = TypeVar("Key")


@dataclass(eq=False)
class Seat:
    """One place in a crew: whoever sits there may change, the place stays.

    Attributes:
        job: what it is at; None when it is free, or loading.
        falls: how often its engine was lost since one there last proved itself.
    """

    remote: Remote
    state: State = "loading"
    job: Job | None = None
    falls: int = 0

    def give(self, job: Job) -> None:
        """Let the engine begin a job."""
        self.job = job
        self.remote.send(job)


class Crew:
    """Engines elsewhere, started together."""

    def __init__(self, remotes: Sequence[Remote], wait: Wait) -> None:
        self._seats = [Seat(remote) for remote in remotes]
        self._wait = wait
        self._founding = True
        self._last_loss = ""
        for seat in self._seats:
            seat.remote.start()

    def muster(self) -> dict[Seat, str]:
        """Wait until the first engines have loaded; return their digests, and let them stand.

        Raises:
            GermlineError: an engine cannot be loaded, or all were lost while loading.
            EngineFault: loading raised something else.
        """
        digests: dict[Seat, str] = {}
        while self._in("loading"):
            for seat, _, outcome in self._take_in():
                digests[seat] = _value(outcome)
        self._founding = False
        for seat in self._in("newcomer"):
            seat.state = "standing"
        return {seat: digests[seat] for seat in self.standing()}

    def standing(self) -> list[Seat]:
        """Return the engines whose weights are those of the fleet."""
        return self._in("standing")

    def newcomers(self) -> list[Seat]:
        """Return the engines that were started anew and have loaded.

        With nobody standing, this waits for all of them: whoever decides then what the weights are
        should not be alone.

        Raises:
            GermlineError: every engine was given up.
        """
        while not self.standing() and (self._in("loading") or not self._in("newcomer")):
            self._take_in()
        return self._in("newcomer")

    def welcome(self, job: Job) -> None:
        """Let every newcomer do what gives it the weights of the fleet, and stand."""
        newcomers = self._in("newcomer")
        for seat in newcomers:
            seat.give(job)
        while any(seat.job is job for seat in newcomers):
            for seat, finished, outcome in self._take_in():
                if finished is not job:
                    continue
                if isinstance(outcome, Raised):
                    self.replace(seat, str(outcome.error))
                else:
                    seat.state = "standing"
                    log.warning("fleet: %s is back", seat.remote.name)

    def hand_out(self, jobs: Mapping[Key, Job]) -> Iterator[tuple[Key, Seat, Any]]:
        """Give each job to the next engine that is free; yield key, engine and result as they come.

        What an engine was lost over is not yielded, nor what nobody was left to do: it is still to
        be done, by those who stand then.

        Raises:
            GermlineError: a job raised it, or every engine was given up.
            EngineFault: a job raised something else.
        """
        waiting = deque(jobs)
        keys: dict[Seat, Key] = {}
        while (waiting or keys) and self.standing():
            for seat in self.standing():
                if waiting and seat.job is None:
                    keys[seat] = waiting.popleft()
                    seat.give(jobs[keys[seat]])
            outcomes = self._take_in()
            keys = {seat: key for seat, key in keys.items() if seat.state == "standing"}
            for seat, _, outcome in outcomes:
                if seat in keys:
                    yield keys.pop(seat), seat, _value(outcome)

    def everyone(self, job: Job) -> dict[Seat, Any]:
        """Let everyone who stands do a job; return the results of those who lived to finish it.

        Raises:
            GermlineError: the job raised it, or every engine was given up.
            EngineFault: the job raised something else.
        """
        results: dict[Seat, Any] = {}
        asked: set[Seat] = set()
        while any(seat not in results for seat in self.standing()):
            for seat in self.standing():
                if seat not in asked and seat.job is None:
                    asked.add(seat)
                    seat.give(job)
            for seat, finished, outcome in self._take_in():
                if finished is job:
                    results[seat] = _value(outcome)
        return {seat: results[seat] for seat in self.standing()}

    def replace(self, seat: Seat, reason: str) -> None:
        """Start an engine anew: the one that sat there is not what it should be.

        Raises:
            GermlineError: every engine was given up.
        """
        seat.remote.stop()
        self._fall(seat, reason)

    def close(self) -> None:
        """End all engines."""
        for seat in self._seats:
            seat.remote.stop()

    def _in(self, state: State) -> list[Seat]:
        return [seat for seat in self._seats if seat.state == state]

    def _take_in(self) -> list[tuple[Seat, Job | None, Done | Raised]]:
        """Wait for outcomes, replace who was lost, and return the rest; loading has no job.

        What nobody waits for any more (the cells of an evaluation that was broken off) comes with a
        job that the caller does not know, and is left aside.
        """
        busy = [seat for seat in self._seats if seat.job is not None or seat.state == "loading"]
        if not busy:
            raise self._nobody_left()
        seats = {id(seat.remote): seat for seat in busy}
        finished: list[tuple[Seat, Job | None, Done | Raised]] = []
        for remote, outcome in self._wait([seat.remote for seat in busy]):
            seat = seats[id(remote)]
            job, seat.job = seat.job, None
            if isinstance(outcome, Lost):
                self._fall(seat, outcome.reason)
            elif job is None and isinstance(outcome, Raised) and not self._founding:
                self.replace(seat, str(outcome.error))
            else:
                seat.state = "newcomer" if job is None else seat.state
                finished.append((seat, job, outcome))
        return finished

    def _fall(self, seat: Seat, reason: str) -> None:
        seat.job = None
        seat.falls += 1
        self._last_loss = f"{seat.remote.name}: {reason}"
        if seat.falls < FALLS:
            log.warning("fleet: lost %s; it is started again", self._last_loss)
            seat.state = "loading"
            seat.remote.start()
            return
        log.warning("fleet: lost %s; after %d times it is given up", self._last_loss, FALLS)
        seat.state = "given up"
        if len(self._in("given up")) == len(self._seats):
            raise self._nobody_left()

    def _nobody_left(self) -> GermlineError:
        return GermlineError(
            f"fleet: every engine was lost {FALLS} times in a row; the last was "
            f"{self._last_loss}. The generations before are recorded: mend the cause, then resume "
            "the run"
        )


def _value(outcome: Done | Raised) -> Any:
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome.value
