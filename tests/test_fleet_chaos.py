"""Chaos: twenty times something happens to an engine, and the run is the one nothing happened to.

Drawn from a seed, over engines that pretend to be elsewhere; `tests/test_ray.py` lets each kind of
fault happen on a real cluster.
"""

from collections import Counter

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
    RemoteEngineLost,
)
from germline.fleet.worker_pool import WorkerPool
from germline.types import EngineLost
from tests.remote_engines import CONFIG, TASK, Nearby, corrupt, digests, local
from tests.test_engine_timeouts import Clockwork
from tests.toy_runs import GradedHere

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
