"""Train several fleets in turn, and measure wall time and processor time of their generations."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from germline.config import Config, load_config
from germline.fleet.engine_processes import EngineProcess, wait_for_outcome
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_pool import WorkerPool
from germline.protocols import Engine, Fleet
from germline.protocols.wrappers import FleetWrapper
from germline.run import build_run_parts
from germline.run.build_fleet import engine_placement, remote_engine_factory, uses_mirrored_search
from germline.run.build_parts import RunParts, make_engine
from germline.training import generations
from germline.types import GenerationRecord


@dataclass(frozen=True)
class ProcessorSeconds:
    """Ask an engine elsewhere how long its process was on a processor."""

    def __call__(self, engine: Engine) -> float:
        """Return seconds, of all its threads."""
        return time.process_time()

    def is_valid_result(self, answer: object) -> bool:
        """Whether this can be a time."""
        return isinstance(answer, float)


@dataclass
class Course:
    """One variant in training, and what its generations took: seconds by the clock, of processors.

    Attributes:
        fleet: whose engines are asked for their seconds.
    """

    loop: Iterator[GenerationRecord]
    fleet: Fleet
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    digest: str = ""

    def step(self) -> None:
        """Train one generation."""
        spent, began = self.processors(), time.perf_counter()
        self.digest = next(self.loop).digest
        self.wall.append(time.perf_counter() - began)
        self.processor.append(self.processors() - spent)

    def processors(self) -> float:
        """Return how long this process and the engines were on a processor, by asking them."""
        fleet, engines = self.fleet, 0.0
        while isinstance(fleet, FleetWrapper):
            fleet = fleet.inner
        if isinstance(fleet, RemoteFleet):
            engines = sum(fleet.pool.broadcast(ProcessorSeconds()).values())
        return time.process_time() + engines


def course(config: Config, variant: str, cleanup: ExitStack) -> Course:
    """Load the engines of a variant and begin to train."""
    kind, _, engines = variant.partition("-")
    fleet: dict[str, object] = {"kind": "local", "engines": int(engines or 1)}
    if kind == "ray":  # several fleets in one cluster: none shall wait for room
        fleet |= {"kind": "ray", "resources": {"CPU": 0.1}}
    config = load_config({**config.model_dump(), "fleet": fleet})
    parts = cleanup.enter_context(build_run_parts(config))
    if kind == "processes" and config.fleet.engines == 1:
        parts = cleanup.enter_context(replace(parts, fleet=one_elsewhere(parts)))
    span = range(config.generations)
    loop = generations(parts.strategy, parts.shape, parts.fleet, parts.batch, parts.decoding, span)
    return Course(loop, parts.fleet)


def one_elsewhere(parts: RunParts) -> RemoteFleet:
    """Put the engine that a config leaves in this process into one of its own."""
    config = parts.config
    load = partial(remote_engine_factory(config, make_engine), engine_placement(config, 0))
    pool = WorkerPool([EngineProcess(0, load)], wait_for_outcome)
    return RemoteFleet(
        pool, parts.graders, config.microbatch, mirrored=uses_mirrored_search(config)
    )
