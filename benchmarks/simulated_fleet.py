"""Discrete-event simulation of a fleet: one driver, its engines and its graders.

The simulation is deterministic: the same arguments give the same times. A generation has the phases
of `germline.fleet.remote_fleet`:

    resync    all engines wait while new engines copy the state of a peer
    generate  a free engine gets the next microbatch; the driver sends it, receives the result and
              passes it to the graders, one after another
    look      digests of all engines
    tell      the update of the strategy, after the last grade
    apply     every engine applies the whole update
    agree     digests of all engines

Engines are lost and rebuilt, and stragglers are dropped if a quorum is enough. The duration of each
action is an argument: measured, counted, or from a data sheet.

Not simulated: network congestion, and the updates that a new engine replays after its snapshot.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from germline.fleet.quorum import GRACE


@dataclass(frozen=True)
class Costs:
    """The duration of every action, in seconds.

    Attributes:
        send: the driver pickles a microbatch.
        receive: the driver unpickles a microbatch, submits it to graders and collects the grades.
        ask: the driver sends any other job to one engine.
        travel: round trip of a message, without the work of either side.
        grade: all graders together grade a microbatch.
        tell: the driver computes the update, once a generation.
        look: an engine digests its weights after generating; 0 for no digest.
        update: an engine applies an update.
        agree: an engine digests its weights after the update.
        rebuild: from the loss of an engine until a new one has loaded the base model.
        resync: new engines copy the state of a peer.
    """

    send: float = 0.0
    receive: float = 0.0
    ask: float = 0.0
    travel: float = 0.0
    grade: float = 0.0
    tell: float = 0.0
    look: float = 0.0
    update: float = 0.0
    agree: float = 0.0
    rebuild: float = 0.0
    resync: float = 0.0


@dataclass
class Spent:
    """The time that some generations took, in seconds.

    Attributes:
        wall: wall time.
        phases: the parts of `wall`, by name.
        driver: time during which the driver worked.
        generating: time of all engines together on microbatches that counted.
        wasted: time of all engines together on microbatches that were lost or late.
        microbatches: number of microbatches that counted.
        losses: number of engines that were lost.
    """

    wall: float = 0.0
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    driver: float = 0.0
    generating: float = 0.0
    wasted: float = 0.0
    microbatches: int = 0
    losses: int = 0


Loss = Callable[[float, float, int], float | None]
"""(begin, end of a microbatch, engine) -> time at which the engine is lost, or None."""


def no_loss(_begin: float, _end: float, _engine: int) -> float | None:
    """Lose no engine."""
    return None


class Result(NamedTuple):
    """The result of an engine; results are ordered by their time of arrival.

    Attributes:
        seconds: time of the engine on the microbatch.
        lost: whether the engine was lost during it.
    """

    at: float
    order: int
    engine: int
    microbatch: int
    seconds: float
    lost: bool


class SimulatedFleet:
    """A fleet of simulated engines.

    Args:
        engines: number of engines.
        costs: durations of all actions except generating.
        quorum: share of the microbatches with which a generation closes, after the same grace
            period as in `germline.fleet.quorum`.
        loses: returns when an engine is lost.
    """

    def __init__(
        self, engines: int, costs: Costs, quorum: float = 1.0, loses: Loss = no_loss
    ) -> None:
        self.costs = costs
        self.quorum = quorum
        self.spent = Spent()
        self._loses = loses
        self._order = count()
        self._now = 0.0
        self._phase_start = 0.0
        self._graded = 0.0  # time at which the graders will have graded all their completions
        self._back = dict.fromkeys(range(engines), 0.0)  # time at which an engine is ready again
        self._fresh: set[int] = set()  # engines without the state of their peers

    def generation(self, microbatches: Sequence[Callable[[int], float]]) -> float:
        """Simulate one generation and return its seconds.

        Args:
            microbatches: in the order in which they are dispatched; each returns the seconds that
                an engine takes to generate it.
        """
        began = self._now
        self._resync()
        self._phase("resync")
        self._generate(microbatches)
        self._phase("generate")
        self._broadcast(self.costs.look)
        self._phase("look")
        self._now = max(self._now, self._graded)
        self._work(self.costs.tell)
        self._phase("tell")
        self._broadcast(self.costs.update)
        self._phase("apply")
        self._broadcast(self.costs.agree)
        self._phase("agree")
        self.spent.wall += self._now - began
        return self._now - began

    def _generate(self, microbatches: Sequence[Callable[[int], float]]) -> None:
        began, closes, done = self._now, math.inf, 0
        waiting, free = deque(range(len(microbatches))), deque(self._ready())
        results: list[Result] = []
        while done < len(microbatches):
            while waiting and free:
                microbatch = waiting.popleft()
                heapq.heappush(
                    results, self._send(free.popleft(), microbatch, microbatches[microbatch])
                )
            if not results:  # no engine is ready: wait for the first that is rebuilt
                self._now = max(self._now, min(self._back.values()))
                free.extend(self._ready())
                continue
            if not waiting and results[0].at > closes:
                self._now = max(self._now, closes)
                break
            result = heapq.heappop(results)
            self._now = max(self._now, result.at)
            if result.lost:
                waiting.append(result.microbatch)
                self._lose(result)
                continue
            free.append(result.engine)
            self._take(result)
            done += 1
            if done == math.ceil(self.quorum * len(microbatches) - 1e-9) < len(microbatches):
                closes = self._now + GRACE * (self._now - began)
        for late in results:  # stragglers finish later, and then apply the update
            self._back[late.engine] = late.at + self.costs.update
            if late.lost:
                self._lose(late)
            else:
                self.spent.wasted += late.seconds

    def _send(self, engine: int, microbatch: int, seconds_on: Callable[[int], float]) -> Result:
        """Send a microbatch to an engine, and return its result or its loss."""
        self._work(self.costs.send)
        begin, seconds = self._now + self.costs.travel / 2, seconds_on(engine)
        lost = self._loses(begin, begin + seconds, engine)
        end = begin + seconds if lost is None else lost
        at = end + self.costs.travel / 2
        return Result(at, next(self._order), engine, microbatch, end - begin, lost is not None)

    def _take(self, result: Result) -> None:
        """Receive a microbatch and submit it to the graders, which work in parallel."""
        self.spent.generating += result.seconds
        self.spent.microbatches += 1
        self._work(self.costs.receive)
        self._graded = max(self._graded, self._now) + self.costs.grade

    def _lose(self, result: Result) -> None:
        self.spent.losses += 1
        self.spent.wasted += result.seconds
        self._back[result.engine] = max(self._now, result.at) + self.costs.rebuild
        self._fresh.add(result.engine)

    def _ready(self) -> list[int]:
        return [engine for engine, back in self._back.items() if back <= self._now]

    def _resync(self) -> None:
        arrived = self._fresh.intersection(self._ready())
        if arrived:
            self._fresh -= arrived
            self._now += self.costs.resync

    def _broadcast(self, seconds: float) -> None:
        """Let all ready engines do the same job; the driver sends it to one after another."""
        if seconds:
            for _ in self._ready():
                self._work(self.costs.ask)
            self._now += seconds + self.costs.travel

    def _work(self, seconds: float) -> None:
        self._now += seconds
        self.spent.driver += seconds

    def _phase(self, name: str) -> None:
        self.spent.phases[name] += self._now - self._phase_start
        self._phase_start = self._now
