"""A fleet in simulation: one driver, engines, graders, and what happens in which order.

Discrete events, and no chance of its own: the same arguments give the same times. A generation is
that of `germline.fleet.remote_fleet`:

    welcome  all wait while fresh engines take over the state of a peer
    play     whoever is free gets the next cell; the driver sends, receives and hands to graders,
             one thing after another
    look     digests of all engines
    tell     the strategy, once the last grade is there
    apply    every engine adds the whole update, whatever their number
    agree    digests of all engines

with engines that are lost and rebuilt, and stragglers left behind where a quorum suffices. What
each thing takes is an argument: measured, counted, or off a data sheet.

Left out: a network that is full, and the updates a newcomer replays after its snapshot.
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
    """What things take, in seconds.

    Attributes:
        send: of the driver, for a cell: pickling it.
        receive: of the driver, for a cell: unpickling, handing to graders, taking grades in.
        ask: of the driver, for any other job of one engine.
        travel: of a message there and its answer back, besides what either side does.
        grade: of all graders together, for a cell.
        tell: of the driver, once a generation.
        look: of an engine, to digest its weights after playing; 0: nobody looks.
        update: of an engine, to apply an update.
        agree: of an engine, to digest its weights after the update.
        rebuild: from the loss of an engine until a fresh one has loaded the base model.
        welcome: for newcomers to take over a peer's state.
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
    welcome: float = 0.0


@dataclass
class Spent:
    """Where the time of some generations went, in seconds.

    Attributes:
        wall: by the clock.
        phases: the parts of `wall`, by name.
        driver: during which the driver worked.
        playing: of all engines together, on cells that counted.
        wasted: of all engines together, on cells that were lost or late.
        cells: that counted.
        losses: engines that were lost.
    """

    wall: float = 0.0
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    driver: float = 0.0
    playing: float = 0.0
    wasted: float = 0.0
    cells: int = 0
    losses: int = 0


Loss = Callable[[float, float, int], float | None]
"""(begin, end of a cell, engine) -> when within it the engine is lost; None: it is not."""


def nobody(_begin: float, _end: float, _engine: int) -> float | None:
    """Lose no engine."""
    return None


class Answer(NamedTuple):
    """What comes back from an engine, in the order in which it arrives.

    Attributes:
        seconds: of the engine, on the cell.
        lost: whether the engine was lost over it.
    """

    at: float
    order: int
    engine: int
    cell: int
    seconds: float
    lost: bool


class SimulatedFleet:
    """Engines in simulation.

    Args:
        engines: their number.
        costs: of everything but playing.
        quorum: the share of the cells with which a generation closes, after the same grace as in
            `germline.fleet.quorum`.
        loses: tells who is lost, and when.
    """

    def __init__(
        self, engines: int, costs: Costs, quorum: float = 1.0, loses: Loss = nobody
    ) -> None:
        self.costs = costs
        self.quorum = quorum
        self.spent = Spent()
        self._loses = loses
        self._order = count()
        self._now = 0.0
        self._told = 0.0  # up to where time was told apart
        self._graded = 0.0  # when graders will be through with what they have
        self._back = dict.fromkeys(range(engines), 0.0)  # when an engine has time for the fleet
        self._fresh: set[int] = set()  # engines that lack the state of their peers

    def generation(self, cells: Sequence[Callable[[int], float]]) -> float:
        """Play one generation and return its seconds.

        Args:
            cells: in the order in which they are handed out; each says for how many seconds an
                engine plays it.
        """
        began = self._now
        self._welcome()
        self._phase("welcome")
        self._play(cells)
        self._phase("play")
        self._everyone(self.costs.look)
        self._phase("look")
        self._now = max(self._now, self._graded)
        self._work(self.costs.tell)
        self._phase("tell")
        self._everyone(self.costs.update)
        self._phase("apply")
        self._everyone(self.costs.agree)
        self._phase("agree")
        self.spent.wall += self._now - began
        return self._now - began

    def _play(self, cells: Sequence[Callable[[int], float]]) -> None:
        began, closes, played = self._now, math.inf, 0
        waiting, free = deque(range(len(cells))), deque(self._standing())
        answers: list[Answer] = []
        while played < len(cells):
            while waiting and free:
                cell = waiting.popleft()
                heapq.heappush(answers, self._send(free.popleft(), cell, cells[cell]))
            if not answers:  # nobody is left to play: wait for whoever is rebuilt first
                self._now = max(self._now, min(self._back.values()))
                free.extend(self._standing())
                continue
            if not waiting and answers[0].at > closes:
                self._now = max(self._now, closes)
                break
            answer = heapq.heappop(answers)
            self._now = max(self._now, answer.at)
            if answer.lost:
                waiting.append(answer.cell)
                self._lose(answer)
                continue
            free.append(answer.engine)
            self._take(answer)
            played += 1
            if played == math.ceil(self.quorum * len(cells) - 1e-9) < len(cells):
                closes = self._now + GRACE * (self._now - began)
        for late in answers:  # they end in their own time, and catch up
            self._back[late.engine] = late.at + self.costs.update
            if late.lost:
                self._lose(late)
            else:
                self.spent.wasted += late.seconds

    def _send(self, engine: int, cell: int, play: Callable[[int], float]) -> Answer:
        """Hand a cell to an engine, and return when it answers, or is found to be lost."""
        self._work(self.costs.send)
        begin, seconds = self._now + self.costs.travel / 2, play(engine)
        lost = self._loses(begin, begin + seconds, engine)
        end = begin + seconds if lost is None else lost
        at = end + self.costs.travel / 2
        return Answer(at, next(self._order), engine, cell, end - begin, lost is not None)

    def _take(self, answer: Answer) -> None:
        """Receive a cell that counts and hand it to the graders, who work meanwhile."""
        self.spent.playing += answer.seconds
        self.spent.cells += 1
        self._work(self.costs.receive)
        self._graded = max(self._graded, self._now) + self.costs.grade

    def _lose(self, answer: Answer) -> None:
        self.spent.losses += 1
        self.spent.wasted += answer.seconds
        self._back[answer.engine] = max(self._now, answer.at) + self.costs.rebuild
        self._fresh.add(answer.engine)

    def _standing(self) -> list[int]:
        return [engine for engine, back in self._back.items() if back <= self._now]

    def _welcome(self) -> None:
        arrived = self._fresh.intersection(self._standing())
        if arrived:
            self._fresh -= arrived
            self._now += self.costs.welcome

    def _everyone(self, seconds: float) -> None:
        """Let everyone who stands do the same; the driver asks one after another."""
        if seconds:
            for _ in self._standing():
                self._work(self.costs.ask)
            self._now += seconds + self.costs.travel

    def _work(self, seconds: float) -> None:
        self._now += seconds
        self.spent.driver += seconds

    def _phase(self, name: str) -> None:
        self.spent.phases[name] += self._now - self._told
        self._told = self._now
