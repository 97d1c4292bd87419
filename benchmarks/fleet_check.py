"""Compare the simulated fleet with real fleets whose engines sleep for a given time.

    python -m benchmarks.fleet_check               # a table of docs/scaling.md

The simulation is told how long every cell takes, and nothing else: no cost of the driver, of pipes,
graders or digests. What it misses is what these take.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.clockwork import load, seconds
from benchmarks.simulated_fleet import Costs, SimulatedFleet
from germline.config import Config, load_config
from germline.fleet.engine_processes import EngineProcess, wait_for_outcome
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_pool import WorkerPool
from germline.protocols import Engine
from germline.rollout import cut_microbatches
from germline.run import build_run_parts
from germline.run.build_parts import RunParts
from germline.training import generations
from germline.types import Perturbation


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare simulated fleets with real ones.")
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2, 3, 4, 8])
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--cell", type=float, default=0.25, help="median seconds of a cell")
    parser.add_argument("--update", type=float, default=0.2, help="seconds of an update")
    arguments = parser.parse_args()
    config = configured(arguments.generations)
    print("16 cells, medians of the generations\n")
    print("| engines | measured, s | simulated, s | error |")
    print("|---|---|---|---|")
    with build_run_parts(config) as parts:
        for count in arguments.engines:
            load_one = partial(load, config, arguments.cell, arguments.update)
            found = statistics.median(measured(parts, count, load_one))
            said = statistics.median(predicted(parts, count, arguments.cell, arguments.update))
            print(f"| {count} | {found:.3f} | {said:.3f} | {said / found - 1:+.1%} |", flush=True)


def configured(count: int) -> Config:
    """Return the config of generations of sixteen cells."""
    return load_config(
        {"engine": "toy", "space": "full", "task": {"kind": "arithmetic", "max_new_tokens": 4}},
        [
            "strategy={population: 32, sigma: 0.005, learning_rate: 0.01}",
            *("batch_size=16", "microbatch.members=2", f"generations={count + 1}"),
        ],
    )


def measured(parts: RunParts, engines: int, load_one: Callable[[], Engine]) -> list[float]:
    """Return the seconds of generations of a real fleet, the first left out."""
    processes = [EngineProcess(number, load_one) for number in range(engines)]
    fleet = RemoteFleet(
        WorkerPool(processes, wait_for_outcome), parts.graders, parts.config.microbatch
    )
    span = range(parts.config.generations)
    try:
        loop = generations(parts.strategy, parts.shape, fleet, parts.batch, parts.decoding, span)
        return [*timed(loop)][1:]
    finally:
        fleet.close()


def timed(loop: Iterator[object]) -> Iterator[float]:
    """Yield how long each turn of a loop takes."""
    began = time.perf_counter()
    for _ in loop:
        yield time.perf_counter() - began
        began = time.perf_counter()


def predicted(parts: RunParts, engines: int, cell_s: float, update_s: float) -> list[float]:
    """Return what a simulation says of the same generations: it knows how long each cell takes."""
    fleet = SimulatedFleet(engines, Costs(update=update_s))
    found = []
    for generation in range(1, parts.config.generations):
        members = parts.strategy.ask(generation).members
        cells = cut_microbatches(members, parts.batch(generation), parts.config.microbatch)
        firsts = [one.members[0] for one in cells]
        found.append(fleet.generation([partial(_slept, one, cell_s) for one in firsts]))
    return found


def _slept(first: Perturbation | None, cell_s: float, _engine: int) -> float:
    return 0.0 if first is None else seconds(first, cell_s)


if __name__ == "__main__":
    main()
