"""When a pool begins, waits and stops waiting, and when a job counts as hung: without any clock."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_jobs import (
    ApplyJob,
    DigestJob,
    EngineJob,
    GenerateJob,
    JobRaised,
    Outcome,
    RemoteEngine,
    RemoteEngineLost,
)
from germline.fleet.worker_pool import WorkerPool
from germline.types import EngineLost, GermlineError
from tests.remote_engines import CONFIG, TASK, Nearby, corrupt, digests, evaluated, local, pool
from tests.toy_runs import GradedHere


class Clockwork:
    """Clock and wait in one: an answer takes a second, and waiting in vain all the time there is.

    `stuck` never answer; `finds_room` says at what time who is vacant is no longer.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.stuck: set[RemoteEngine] = set()
        self.finds_room: dict[RemoteEngine, float] = {}

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def wait(
        self, remotes: Sequence[RemoteEngine], timeout: float | None
    ) -> list[tuple[RemoteEngine, Outcome]]:
        """Return the outcome of one that has one, each in turn."""
        free = [one for one in remotes if one not in self.stuck and not one.waits_for_resources]
        if free:
            self.now += 1.0
            first = free[int(self.now) % len(free)]
            assert isinstance(first, Nearby)
            return [(first, first.outcome())]
        moves = [
            at for one, at in self.finds_room.items() if one in remotes and one.waits_for_resources
        ]
        assert moves or timeout is not None, "nobody would ever answer"
        self.now = min([*moves, *([] if timeout is None else [self.now + timeout])])
        for one, at in self.finds_room.items():
            if at <= self.now and isinstance(one, Nearby):
                one.waits_for_resources = False
        return []


def timed_fleet(engines, clockwork, quorum=1.0, **settings):
    clock = clockwork.clock
    together = WorkerPool(
        engines, clockwork.wait, resources_report=lambda: "ROOM", clock=clock, **settings
    )
    return RemoteFleet(together, GradedHere(TASK), CONFIG.microbatch, quorum)


def hanging(clockwork: Clockwork, name: str, place: int, kind: type):
    """Return an engine that hangs over one of its jobs of a kind, until it is started again."""

    class Hanging(Nearby):
        left = place

        def send(self, job):
            super().send(job)
            if isinstance(job, kind):
                if self.left == 0:
                    clockwork.stuck.add(self)
                self.left -= 1

        def stop(self):
            super().stop()
            clockwork.stuck.discard(self)

    return Hanging(name)


@pytest.mark.parametrize("limit", [60.0, 360.0])
def test_a_job_has_the_seconds_of_the_timeout(limit):
    clockwork = Clockwork()
    engines = [hanging(clockwork, "engine 0", 0, GenerateJob), Nearby("engine 1")]
    fleet = timed_fleet(engines, clockwork, job_timeout_s=limit)
    began = clockwork.now
    evaluated(fleet)
    assert engines[0].starts == 2
    assert limit <= clockwork.now - began < limit + 30


def waits_for_resources(count, *full):
    engines = pool(count)
    for place in full:
        engines[place].waits_for_resources = True
    return engines


def test_too_little_room_is_an_error_in_time():
    clockwork = Clockwork()
    with pytest.raises(GermlineError, match="engines without resources to run on: 2"):
        timed_fleet(waits_for_resources(3, 1, 2), clockwork, placement_timeout_s=30.0)
    assert 30.0 <= clockwork.now < 33.0


def test_room_for_nobody_stops_the_run_in_time():
    clockwork = Clockwork()

    def with_its_node(engine, job):
        engine.waits_for_resources = isinstance(job, GenerateJob)
        return RemoteEngineLost("its node was removed") if engine.waits_for_resources else None

    fleet = timed_fleet(pool(2, with_its_node, with_its_node), clockwork, placement_timeout_s=30.0)
    with pytest.raises(GermlineError, match="engines without resources to run on: 2"):
        evaluated(fleet)


FAULTS = 20
GENERATIONS = 12
KINDS = ("killed", "hung", "gone", "corrupted", "node removed")


class Chaos:
    """What happens when: a fault every few jobs, of any kind, to whoever is given the next one."""

    def __init__(self, clockwork: Clockwork, seed: int) -> None:
        self.clockwork = clockwork
        self.happened: list[str] = []
        self._random = np.random.default_rng(seed)
        self._quiet = 4  # jobs until the next fault

    def strikes(self, job: EngineJob) -> str | None:
        """Say what happens over a job, if anything does."""
        if not isinstance(job, GenerateJob | ApplyJob | DigestJob) or len(self.happened) == FAULTS:
            return None
        self._quiet -= 1
        if self._quiet > 0:
            return None
        self._quiet = int(self._random.integers(3, 10))
        kind = str(self._random.choice(KINDS))
        if kind == "corrupted" and not isinstance(job, GenerateJob):
            kind = "killed"  # whoever is alone with an update has nobody to be compared with
        self.happened.append(kind)
        return kind


class Struck(Nearby):
    """An engine to which things happen; started again, it is well."""

    def __init__(self, name: str, chaos: Chaos) -> None:
        super().__init__(name)
        self._chaos = chaos

    def send(self, job: EngineJob) -> None:
        """Begin a job, and never end it when this engine hangs over it."""
        super().send(job)
        kind = self._chaos.strikes(job)
        if kind == "hung":
            self._chaos.clockwork.stuck.add(self)
        elif kind == "corrupted":
            corrupt(self.engine)
        elif kind is not None:
            self._pending = lambda: self._struck(kind)

    def stop(self) -> None:
        """Forget everything, also what it hung over."""
        super().stop()
        self._chaos.clockwork.stuck.discard(self)

    def _struck(self, kind: str) -> Outcome:
        if kind == "gone":
            return JobRaised(EngineLost("the server does not answer"))
        if kind == "node removed":
            # Another one is there a while later.
            self.waits_for_resources = True
            self._chaos.clockwork.finds_room[self] = self._chaos.clockwork.now + 20.0
        return RemoteEngineLost(kind)


@pytest.fixture(scope="module")
def undisturbed():
    return digests(local(), GENERATIONS)


@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_faults_change_nothing(seed, undisturbed):
    clockwork = Clockwork()
    chaos = Chaos(clockwork, seed)
    engines = [Struck(f"engine {number}", chaos) for number in range(3)]
    pool = WorkerPool(engines, clockwork.wait, job_timeout_s=30.0, clock=clockwork.clock)
    fleet = RemoteFleet(pool, GradedHere(TASK), CONFIG.microbatch)
    assert digests(fleet, GENERATIONS) == undisturbed
    assert len(chaos.happened) == FAULTS
    assert len(Counter(chaos.happened)) >= 4
