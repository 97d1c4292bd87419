"""Train variants of a fleet in turn, and measure wall time and CPU time of their generations."""

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
    """Query the CPU time of a remote engine's process."""

    def __call__(self, engine: Engine) -> float:
        """Return the CPU seconds of all its threads."""
        return time.process_time()

    def is_valid_result(self, answer: object) -> bool:
        """Return whether the answer is a number of seconds."""
        return isinstance(answer, float)


@dataclass
class VariantTraining:
    """One variant in training, with the wall seconds and CPU seconds of its generations.

    Attributes:
        fleet: its engines are queried for their CPU seconds.
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
        """Return the CPU seconds of this process and of the engines, which are queried."""
        fleet, engines = self.fleet, 0.0
        while isinstance(fleet, FleetWrapper):
            fleet = fleet.inner
        if isinstance(fleet, RemoteFleet):
            engines = sum(fleet.pool.broadcast(ProcessorSeconds()).values())
        return time.process_time() + engines


def begin_training(config: Config, variant: str, cleanup: ExitStack) -> VariantTraining:
    """Load the engines of a variant and begin to train it."""
    kind, _, engines = variant.partition("-")
    fleet: dict[str, object] = {"kind": "local", "engines": int(engines or 1)}
    if kind == "ray":  # several fleets share a cluster: none should wait for resources
        fleet |= {"kind": "ray", "resources": {"CPU": 0.1}}
    config = load_config({**config.model_dump(), "fleet": fleet})
    parts = cleanup.enter_context(build_run_parts(config))
    if kind == "processes" and config.fleet.engines == 1:
        parts = cleanup.enter_context(replace(parts, fleet=one_elsewhere(parts)))
    span = range(config.generations)
    loop = generations(parts.strategy, parts.shape, parts.fleet, parts.batch, parts.decoding, span)
    return VariantTraining(loop, parts.fleet)


def one_elsewhere(parts: RunParts) -> RemoteFleet:
    """Return a fleet of one engine in its own process, which a config runs in this process."""
    config = parts.config
    load = partial(remote_engine_factory(config, make_engine), engine_placement(config, 0))
    pool = WorkerPool([EngineProcess(0, load)], wait_for_outcome)
    return RemoteFleet(
        pool, parts.graders, config.microbatch, mirrored=uses_mirrored_search(config)
    )
