"""Compare the simulated fleet with real fleets whose engines sleep for a given time.

    python -m benchmarks.fleet_check               # a table of docs/scaling.md

The simulation knows the duration of every microbatch and update, but no costs of the driver, pipes,
graders and digests. The error shows these costs.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.simulated_fleet import Costs, SimulatedFleet
from benchmarks.sleeping_engine import load, seconds
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
    parser.add_argument("--microbatch", type=float, default=0.25, help="its median seconds")
    parser.add_argument("--update", type=float, default=0.2, help="seconds of an update")
    arguments = parser.parse_args()
    config = configured(arguments.generations)
    print("16 microbatches, medians of the generations\n")
    print("| engines | measured, s | simulated, s | error |")
    print("|---|---|---|---|")
    with build_run_parts(config) as parts:
        for count in arguments.engines:
            load_one = partial(load, config, arguments.microbatch, arguments.update)
            real = statistics.median(measured(parts, count, load_one))
            costs = (arguments.microbatch, arguments.update)
            simulated = statistics.median(predicted(parts, count, *costs))
            error = simulated / real - 1
            print(f"| {count} | {real:.3f} | {simulated:.3f} | {error:+.1%} |", flush=True)


def configured(count: int) -> Config:
    """Return a config whose generations have sixteen microbatches."""
    return load_config(
        {"engine": "toy", "space": "full", "task": {"kind": "arithmetic", "max_new_tokens": 4}},
        [
            "strategy={population: 32, sigma: 0.005, learning_rate: 0.01}",
            *("batch_size=16", "microbatch.members=2", f"generations={count + 1}"),
        ],
    )


def measured(parts: RunParts, engines: int, load_one: Callable[[], Engine]) -> list[float]:
    """Return the seconds of the generations of a real fleet, without the first one."""
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
    """Yield the seconds of each iteration of a loop."""
    began = time.perf_counter()
    for _ in loop:
        yield time.perf_counter() - began
        began = time.perf_counter()


def predicted(parts: RunParts, engines: int, microbatch_s: float, update_s: float) -> list[float]:
    """Return the simulated seconds of the same generations."""
    fleet = SimulatedFleet(engines, Costs(update=update_s))
    durations = []
    for generation in range(1, parts.config.generations):
        members = parts.strategy.ask(generation).members
        microbatches = cut_microbatches(members, parts.batch(generation), parts.config.microbatch)
        firsts = [microbatch.members[0] for microbatch in microbatches]
        slept = [partial(_slept, first, microbatch_s) for first in firsts]
        durations.append(fleet.generation(slept))
    return durations


def _slept(first: Perturbation | None, microbatch_s: float, _engine: int) -> float:
    return 0.0 if first is None else seconds(first, microbatch_s)


if __name__ == "__main__":
    main()
