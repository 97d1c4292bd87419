"""Engines in this process that pretend to be elsewhere, with faults to order.

`Nearby` keeps the whole contract of a remote engine without a process, so that what a fleet does
about faults is tested in milliseconds, and the same every time.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from germline.config import Config
from germline.fleet import Fleet, LocalFleet
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_jobs import (
    EngineJob,
    JobDone,
    JobRaised,
    Outcome,
    RemoteEngine,
    RemoteEngineLost,
    Wait,
    run_and_catch,
)
from germline.fleet.worker_pool import WorkerPool
from germline.generation_loop import batches, generations
from germline.methods.method import Method
from germline.protocols import Engine
from germline.run.build_parts import build_run_parts, make_decoding, make_engine
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Evaluation, GermlineError
from tests.toy_runs import ADAM_FULL, GradedHere, settings

# Moments as well: a newcomer must take them over. Short completions, as there are many of them.
CONFIG = settings(*ADAM_FULL, "task.max_new_tokens=4")
TASK = make_task(CONFIG.task)
EXAMPLES = TASK.examples("train")[:7]
DECODING = make_decoding(CONFIG, TASK)
STRATEGY = make_strategy(CONFIG.strategy, run_seed=0, generations=9)
UPDATES = [
    STRATEGY.tell(STRATEGY.ask(generation), np.array([1.0, -1.0, 0.5, -0.5, 0.0, 0.0]))
    for generation in range(6)
]


class Nearby:
    """`fault` is asked before every job; what it returns is the outcome, and not the job's own."""

    def __init__(
        self,
        name: str,
        fault: "Fault | None" = None,
        load: Callable[[], Engine] = lambda: make_engine(CONFIG),
    ) -> None:
        self.name = name
        self.waits_for_resources = False
        self.engine: Engine | None = None
        self.starts = 0
        self.jobs: list[EngineJob] = []
        self._load = load
        self._fault = fault
        self._pending: Callable[[], Outcome] | None = None

    def digest(self) -> str:
        assert self.engine is not None, f"{self.name} has not loaded"
        return self.engine.weights.digest()

    def start(self) -> None:
        self.starts += 1
        self.engine = None
        self._pending = self._loaded

    def send(self, job: EngineJob) -> None:
        assert self._pending is None, "an engine does one job at a time"
        self._pending = lambda: self._done(job)

    def stop(self) -> None:
        self.engine = self._pending = None

    def outcome(self) -> Outcome:
        assert self._pending is not None, "nothing was asked of this engine"
        pending, self._pending = self._pending, None
        return pending()

    def _loaded(self) -> Outcome:
        try:
            self.engine = self._load()
        except (GermlineError, RuntimeError) as error:
            return JobRaised(error)
        return JobDone(self.digest())

    def _done(self, job: EngineJob) -> Outcome:
        assert self.engine is not None
        self.jobs.append(job)
        outcome = self._fault(self, job) if self._fault else None
        if outcome is not None:
            return outcome
        try:
            return JobDone(job(self.engine))
        except GermlineError as error:
            return JobRaised(error)


class PickledEngine:
    """An engine of a run in this process: load, jobs and outcomes are pickled, as to another."""

    waits_for_resources = False

    def __init__(
        self, number: int, load: Callable[[], Engine], _environment: object = None
    ) -> None:
        self.name = f"engine {number}"
        self._load = pickle.dumps(load)
        self._engine: Engine | None = None
        self._outcome: Outcome | None = None

    def start(self) -> None:
        self._outcome = run_and_catch(self._loaded)

    def send(self, job: EngineJob) -> None:
        message = pickle.dumps(job)
        self._outcome = run_and_catch(lambda: pickle.loads(message)(self._engine))

    def stop(self) -> None:
        self._engine = None

    def outcome(self) -> Outcome:
        return pickle.loads(pickle.dumps(self._outcome))

    def _loaded(self) -> str:
        self._engine = pickle.loads(self._load)()
        return self._engine.weights.digest()


Fault = Callable[[Nearby, EngineJob], Outcome | None]


class Chance:
    """Waits for engines in random order, one or more at a time, as they would answer."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, remotes, _timeout):
        count = self._random.integers(1, len(remotes) + 1)
        chosen = self._random.permutation(len(remotes))[:count]
        return [(remotes[index], remotes[index].outcome()) for index in chosen]


def first_one_first(remotes, _timeout):
    """Wait for engines in their order, one at a time."""
    return [(remotes[0], remotes[0].outcome())]


def last_one_first(remotes, _timeout):
    """Wait for engines in reverse order, one at a time."""
    return [(remotes[-1], remotes[-1].outcome())]


def fleet_of(
    engines: Sequence[Nearby], seed: int = 0, wait: Wait | None = None, *, shares_disk: bool = True
) -> RemoteFleet:
    pool = WorkerPool(engines, wait or Chance(seed))
    graders = GradedHere(make_task(CONFIG.task))
    return RemoteFleet(pool, graders, CONFIG.microbatch, shares_disk=shares_disk)


def killed_at(*places: int, kind: type = object) -> Fault:
    """Lose an engine at the given ones of its jobs of a kind, counted from 0 over all its lives."""
    seen = iter(range(10**6))

    def fault(_engine: Nearby, job: EngineJob) -> Outcome | None:
        return (
            RemoteEngineLost("killed") if isinstance(job, kind) and next(seen) in places else None
        )

    return fault


def corrupted_at(*places: int, kind: type = object) -> Fault:
    """Flip a weight before the given ones of an engine's jobs of a kind."""
    seen = iter(range(10**6))

    def fault(engine: Nearby, job: EngineJob) -> Outcome | None:
        if isinstance(job, kind) and next(seen) in places:
            corrupt(engine.engine)
        return None

    return fault


def after_its_next_job(remote: RemoteEngine, act: Callable[[], None]) -> None:
    """Do something, once, when a remote engine has been sent its next job."""
    send = remote.send

    def send_and_act(job: EngineJob) -> None:
        remote.send = send  # type: ignore[method-assign]
        send(job)
        act()

    remote.send = send_and_act  # type: ignore[method-assign]


def corrupt(engine: Engine | None) -> None:
    assert engine is not None
    next(iter(engine.weights.state().values())).view(-1)[3] += 0.25


def pool(count: int, *faults: Fault | None) -> list[Nearby]:
    """Name engines and give the first of them faults."""
    given = [*faults, *[None] * (count - len(faults))]
    return [Nearby(f"engine {number}", fault) for number, fault in enumerate(given)]


def local() -> LocalFleet:
    """Return what all fleets must equal: one engine here."""
    return LocalFleet(make_engine(CONFIG), GradedHere(TASK), CONFIG.microbatch)


def evaluated(fleet: Fleet, generation: int = 0) -> Evaluation:
    return fleet.evaluate(STRATEGY.ask(generation), EXAMPLES, DECODING)


def assert_same(one: Evaluation, other: Evaluation) -> None:
    assert one.rewards.tobytes() == other.rewards.tobytes()
    assert one.rollouts == other.rollouts
    assert one.tokens == other.tokens


def digests(fleet: Fleet, count: int = 4) -> list[tuple[str, tuple[float, ...]]]:
    """Run the bare loop and return what decides a run."""
    strategy = make_strategy(CONFIG.strategy, run_seed=CONFIG.seed, generations=count)
    shape = partial(utilities, CONFIG.shaping)
    batch = batches(TASK.examples("train"), CONFIG.batch_size, CONFIG.seed)
    loop = generations(Method(strategy, shape), fleet, batch, DECODING, range(count))
    return [(record.digest, record.fitness) for record in loop]


def nearby_fleet(config: Config, engines: int, *faults: Fault) -> RemoteFleet:
    """Return a fleet of engines of a config, the first of them with faults."""
    given = [*faults, *[None] * (engines - len(faults))]
    nearby = [
        Nearby(f"engine {number}", fault, lambda: make_engine(config))
        for number, fault in enumerate(given)
    ]
    graders = GradedHere(make_task(config.task))
    return RemoteFleet(WorkerPool(nearby, Chance()), graders, config.microbatch)


def run_digests(config: Config, fleet: Fleet | None = None) -> list[str]:
    """Run the loop of a config over a fleet, or one engine here; return its digests."""
    with build_run_parts(config) as parts:
        fleet = fleet or LocalFleet(make_engine(config), GradedHere(parts.task), config.microbatch)
        loop = generations(
            parts.method, fleet, parts.batch, parts.decoding, range(config.generations)
        )
        return [record.digest for record in loop]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
