"""Several engine processes against one engine in this process, with the same threads for each.

    python -m benchmarks.fleet                     # the table of docs/benchmarks.md
    python -m benchmarks.fleet --engines 1 2 4 --generations 30

Whole generations of training on the nano model (evaluate, grade, learn, apply, digest), without
writing a run directory. The variants take turns, generation by generation, so that they meet the
same machine; medians are compared. All must reach the same digest, or there is nothing to compare.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import torch

from germline.config import Config, load_config
from germline.run import assemble
from germline.training import generations
from germline.types import GenerationRecord

WARM_UP = 2
"""Generations of each variant that are not timed: threads start, files are read."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Members per second of one and several engines.")
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=1, help="of every engine")
    parser.add_argument("--spaces", nargs="+", default=["low_rank", "full"])
    parser.add_argument("--population", type=int, default=64)
    parser.add_argument("--generations", type=int, default=12)
    arguments = parser.parse_args()
    print(
        f"nano, arithmetic, {arguments.population} members, {arguments.threads} threads per "
        f"engine, {os.cpu_count()} cores, torch {torch.__version__}, medians of "
        f"{arguments.generations} generations\n"
    )
    print("| space | engines | generation, s | members/s | against one | digest |")
    print("|---|---|---|---|---|---|")
    for space in arguments.spaces:
        overrides = [
            f"space={space}",
            f"engine.threads={arguments.threads}",
            f"strategy.population={arguments.population}",
            f"generations={arguments.generations + WARM_UP}",
            "cell.rows=256",  # eight cells of a generation of 64 members x 32 examples
        ]
        config = load_config("configs/arithmetic.yaml", overrides)
        for row in compare(config, arguments.engines):
            print(f"| {space} | {row}")


def compare(config: Config, engines: Sequence[int]) -> Iterator[str]:
    """Train with each number of engines, taking turns; return the rows of the table."""
    seconds: dict[int, list[float]] = {count: [] for count in engines}
    digests: dict[int, str] = {}
    with ExitStack() as cleanup:
        loops = {count: _loop(config, count, cleanup) for count in engines}
        for generation in range(config.generations):
            for count, loop in loops.items():
                began = time.perf_counter()
                record = next(loop)
                digests[count], members = record.digest, len(record.fitness)
                if generation >= WARM_UP:
                    seconds[count].append(time.perf_counter() - began)
    medians = {count: statistics.median(times) for count, times in seconds.items()}
    one = medians[engines[0]]
    for count, median in medians.items():
        rate = members / median
        yield (
            f"{count} | {median:.3f} | {rate:.1f} | {one / median:.2f} | {digests[count][:12]} |"
        )
    if len(set(digests.values())) != 1:
        raise SystemExit("the digests differ: this is a fault, not a speed")


def _loop(config: Config, engines: int, cleanup: ExitStack) -> Iterator[GenerationRecord]:
    fleet = config.fleet.model_copy(update={"engines": engines})
    parts = cleanup.enter_context(assemble(config.model_copy(update={"fleet": fleet})))
    span = range(config.generations)
    return generations(parts.strategy, parts.shape, parts.fleet, parts.batch, parts.decoding, span)


if __name__ == "__main__":
    main()
