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

from germline.fleet import weighing
from germline.fleet.elsewhere import Done, Lost, Outcome, Raised, Remote, Wait
from germline.fleet.jobs import Job, Play, is_digest
from germline.traffic import Traffic
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

FALLS = 3
"""An engine lost so often, without proving itself in between, is not started again."""

State = Literal["loading", "newcomer", "standing", "late", "given up"]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Terms:
    """When a crew begins, and when it stops waiting.

    Attributes:
        least: engines that must have loaded to begin; None: all.
        room_s: longest wait for room to run in while the crew cannot go on without, in seconds.
        hung_after: an engine hangs that is at a job for so many times what the slowest of its kind
            took so far, for its size; None: however long it takes.
        hung_after_s: but not before so many seconds.
    """

    least: int | None = None
    room_s: float = 30.0
    hung_after: float | None = None
    hung_after_s: float = 120.0


@dataclass(eq=False)
class Seat:
    """One place in a crew: whoever sits there may change, the place stays.

    Attributes:
        job: what it is at; None when it is free, or loading.
        falls: how often its engine was lost since one there last proved itself.
        since: when its job began, by the crew's clock.
        behind: whether a newcomer is one that was late: it has weights, of an earlier generation.
    """

    remote: Remote
    state: State = "loading"
    job: Job | None = None
    falls: int = 0
    since: float = 0.0
    behind: bool = False


class Crew:
    """Engines elsewhere, started together.

    Args:
        remotes: the engines.
        wait: waits for some of them.
        terms: when to begin, and when to stop waiting.
        room: says what the engines need and what there is, where they may wait for room.
        clock: in seconds.

    Attributes:
        traffic: what travelled so far.
    """

    def __init__(
        self,
        remotes: Sequence[Remote],
        wait: Wait,
        terms: Terms | None = None,
        room: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.traffic = Traffic()
        self.clock = clock
        self._seats = [Seat(remote) for remote in remotes]
        self._wait = wait
        self._terms = terms or Terms()
        self._room = room
        self._founding = True
        self._last_loss = ""
        self._slowest: dict[type[Job], float] = {}
        self._slowest_row: dict[type[Job], float] = {}
        self._cramped_since: float | None = None
        for seat in self._seats:
            seat.remote.start()

    def muster(self) -> dict[Seat, str]:
        """Wait until the first engines have loaded; return their digests, and let them stand.

        Raises:
            GermlineError: an engine cannot be loaded, all were lost while loading, or there is no
                room for as many as are needed.
            EngineFault: loading raised something else.
        """
        digests: dict[Seat, str] = {}
        while not self._has_mustered():
            for seat, _, outcome in self._take_in():
                digests[seat] = _value(outcome)
        self._founding = False
        for seat in self._in("newcomer"):
            seat.state = "standing"
        return {seat: digests[seat] for seat in self.standing()}

    def standing(self) -> list[Seat]:
        """Return the engines whose weights are those of the fleet."""
        return self._in("standing")

    def late(self) -> list[Seat]:
        """Return the engines that are still at what nobody waits for any more."""
        return self._in("late")

    def newcomers(self) -> list[Seat]:
        """Return the engines that have loaded, or come back late, and lack the fleet's weights.

        With nobody standing, this waits for all of them: whoever decides then what the weights are
        should not be alone.

        Raises:
            GermlineError: every engine was given up, or there is no room for any.
        """
        while not self.standing() and (self._coming() or not self._in("newcomer")):
            self._take_in()
        return self._in("newcomer")

    def welcome(self, job_of: Callable[[Seat], Job]) -> None:
        """Let every newcomer do what gives it the weights of the fleet, and stand."""
        jobs = {seat: job_of(seat) for seat in self._in("newcomer")}
        for seat, job in jobs.items():
            self._give(seat, job)
        while any(seat.job is job for seat, job in jobs.items()):
            for seat, finished, outcome in self._take_in():
                if finished is None or finished is not jobs.get(seat):
                    continue
                if isinstance(outcome, Raised):
                    self.replace(seat, str(outcome.error))
                else:
                    seat.state, seat.behind = "standing", False
                    log.warning("fleet: %s is back", seat.remote.name)

    def hand_out(
        self, jobs: Mapping[Key, Job], closes: Callable[[], float | None] = lambda: None
    ) -> Iterator[tuple[Key, Seat, Any]]:
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
        keys: dict[Seat, Key] = {}
        while (waiting or keys) and self.standing():
            self._begin(waiting, keys, jobs)
            outcomes = self._take_in(None if waiting else closes())
            keys = {seat: key for seat, key in keys.items() if seat.state == "standing"}
            done = [(keys.pop(seat), seat, one) for seat, _, one in outcomes if seat in keys]
            # Before anyone looks at what came: engines shall not wait for that.
            self._begin(waiting, keys, jobs)
            for key, seat, outcome in done:
                yield key, seat, _value(outcome)
            end = closes()
            if not waiting and end is not None and self.clock() >= end:
                for seat in keys:
                    seat.state = "late"
                return

    def _begin(self, waiting: deque[Key], keys: dict[Seat, Key], jobs: Mapping[Key, Job]) -> None:
        """Give what waits to whoever is free, and note who has what."""
        for seat in self.standing():
            if waiting and seat.job is None:
                keys[seat] = waiting.popleft()
                self._give(seat, jobs[keys[seat]])

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
                    self._give(seat, job)
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

    def _coming(self) -> list[Seat]:
        """Return those who load or are late: sooner or later they are newcomers."""
        return [one for one in (*self._in("loading"), *self.late()) if not one.remote.vacant]

    def _has_mustered(self) -> bool:
        loading, least = self._in("loading"), self._terms.least or len(self._seats)
        enough = len(self._in("newcomer")) >= least
        return not loading or (enough and all(seat.remote.vacant for seat in loading))

    def _give(self, seat: Seat, job: Job) -> None:
        self.traffic += weighing.sent(job)
        seat.job, seat.since = job, self.clock()
        seat.remote.send(job)

    def _take_in(self, until: float | None = None) -> list[tuple[Seat, Job | None, Done | Raised]]:
        """Wait for outcomes, replace who was lost, and return the rest; loading has no job.

        What nobody waits for any more (the cells of an evaluation that was broken off) comes with a
        job that the caller does not know, and is left aside.
        """
        busy = [seat for seat in self._seats if seat.job is not None or seat.state == "loading"]
        if not busy:
            raise self._nobody_left()
        ends = [self._end_of_room(busy), until, *map(self._end_of_patience, busy)]
        end = min((one for one in ends if one is not None), default=None)
        timeout = None if end is None else max(0.0, end - self.clock())
        seats = {id(seat.remote): seat for seat in busy}
        finished = []
        for remote, outcome in self._wait([seat.remote for seat in busy], timeout):
            seat = seats[id(remote)]
            job, seat.job = seat.job, None
            if believed := self._believed(seat, job, outcome):
                finished.append((seat, job, believed))
        self._lose_patience(busy)
        return finished

    def _believed(self, seat: Seat, job: Job | None, outcome: Outcome) -> Done | Raised | None:
        """Replace who was lost, in one way or another; return what the others have to say."""
        if isinstance(outcome, Lost):
            self._fall(seat, outcome.reason)
            return None
        if isinstance(outcome, Raised):
            in_vain = not self._founding and (job is None or isinstance(outcome.error, EngineLost))
            if in_vain:
                self.replace(seat, str(outcome.error))
                return None
        elif not (job.believes(outcome.value) if job else is_digest(outcome.value)):
            self.replace(seat, f"it answered garbage: {repr(outcome.value)[:80]}")
            return None
        elif job:
            self.traffic += weighing.received(job, outcome.value)
            took = self.clock() - seat.since
            for known, one in ((self._slowest, took), (self._slowest_row, took / _rows(job))):
                known[type(job)] = max(one, known.get(type(job), 0.0))
        if job is None or seat.state == "late":
            seat.behind = seat.state == "late"
            seat.state = "newcomer"
        return outcome

    def _end_of_patience(self, seat: Seat) -> float | None:
        """Return when an engine will have been at its job for too long."""
        terms = self._terms
        watched = seat.state in ("standing", "late") and terms.hung_after is not None
        if seat.job is None or not watched or type(seat.job) not in self._slowest:
            return None
        return seat.since + max(terms.hung_after_s, (terms.hung_after or 0) * self._due(seat.job))

    def _due(self, job: Job) -> float:
        """Return what the slowest such job took, or would have taken had it been as large."""
        kind = type(job)
        return max(self._slowest[kind], self._slowest_row[kind] * _rows(job))

    def _lose_patience(self, busy: Sequence[Seat]) -> None:
        now = self.clock()
        for seat in busy:
            end = self._end_of_patience(seat)
            if seat.job and end is not None and now >= end:
                self.replace(
                    seat,
                    f"it hung: {now - seat.since:.1f} s at what took {self._due(seat.job):.1f} s "
                    "at most so far (fleet.hung_after, fleet.hung_after_s)",
                )

    def _end_of_room(self, busy: Sequence[Seat]) -> float | None:
        """Return when the crew will have waited too long for room that it needs to go on.

        Raises:
            GermlineError: that is now.
        """
        vacant = [seat for seat in busy if seat.remote.vacant]
        if self._founding:
            cramped = len(self._seats) - len(vacant) < (self._terms.least or len(self._seats))
        else:
            cramped = len(vacant) == len(busy) and not self.standing() and not self._in("newcomer")
        if not cramped:
            self._cramped_since = None
            return None
        now = self.clock()
        self._cramped_since = now if self._cramped_since is None else self._cramped_since
        end = self._cramped_since + self._terms.room_s
        if now >= end:
            raise GermlineError(f"fleet: {len(vacant)} engines found no room: {self._room()}")
        return end

    def _fall(self, seat: Seat, reason: str) -> None:
        seat.job, seat.behind = None, False
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


def _rows(job: Job) -> int:
    """Return the size of a job: playing takes the longer the more is played."""
    return len(job.members) * len(job.examples) if isinstance(job, Play) else 1


def _value(outcome: Done | Raised) -> Any:
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome.value
