"""What a fleet costs: engines in processes and on Ray against one engine in this process.

    python -m benchmarks.fleet                     # the tables of docs/benchmarks.md
    python -m benchmarks.fleet --variants here processes-1 --spaces low_rank --generations 30
    python -m benchmarks.fleet --models 22M --population 16 --generations 6

Whole generations of training (ask, evaluate, grade, learn, apply, digest), without a run directory.
The variants take turns, generation by generation, so that they meet the same machine, and each is
compared with `here` of the same round; the medians of these ratios are shown. All must reach the
same digest, or there is nothing to compare.

`here` is the smallest fleet; `processes-N` and `ray-N` are N engines elsewhere. Elsewhere is work
that `here` does not have, and the seconds of processors tell it apart from what other programs did
to the clock. They are those of this process and of the engines, not of Ray's own daemons, and
graders' processes are the same for all.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.courses import course
from benchmarks.shapes import BENCH, save_random
from germline.config import Config, load_config

WARM_UP = 2
"""Generations of each variant that are not timed: threads start, files are read."""
VARIANTS = ("here", "processes-1", "processes-2", "ray-1", "ray-2")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Members per second of engines here and elsewhere")
    parser.add_argument("--models", nargs="+", default=["nano"], choices=["nano", "22M"])
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--threads", type=int, default=1, help="of every engine")
    parser.add_argument("--spaces", nargs="+", default=["low_rank", "full"])
    parser.add_argument("--population", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--generations", type=int, default=12)
    arguments = parser.parse_args()
    print(
        f"arithmetic, {arguments.population} members x {arguments.batch} prompts, "
        f"{arguments.threads} threads per engine, {os.cpu_count()} cores, torch "
        f"{torch.__version__}, medians of {arguments.generations} rounds\n"
    )
    print(
        "| model | space | engines | generation, s | members/s | members/s against here "
        "| processor seconds | against here | digest |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            source = model if model == "nano" else save_random(BENCH[model], Path(folder) / model)
            for space in arguments.spaces:
                config = configured(source, space, arguments)
                for row in compare(config, arguments.variants):
                    print(f"| {model} | {space} | {row}", flush=True)


def configured(model: str, space: str, arguments: argparse.Namespace) -> Config:
    """Return the config of all variants, but for their engines."""
    rows = max(1, arguments.population * arguments.batch // 8)
    overrides = [
        f"model={model}",
        f"space={space}",
        f"engine.threads={arguments.threads}",
        f"strategy={{population: {arguments.population}, sigma: 0.01, learning_rate: 0.02}}",
        f"batch_size={arguments.batch}",
        f"generations={arguments.generations + WARM_UP}",
        f"microbatch.rows={rows}",  # eight cells of a generation
    ]
    return load_config("configs/arithmetic.yaml", overrides)


def compare(config: Config, variants: Sequence[str]) -> Iterator[str]:
    """Train with each variant, taking turns; yield the rows of the table."""
    with ExitStack() as cleanup:
        courses = {name: course(config, name, cleanup) for name in variants}
        for _ in range(config.generations):
            for one in courses.values():
                one.step()
    first, members = courses[variants[0]], config.strategy.population or 0
    for name, one in courses.items():
        median = statistics.median(one.wall[WARM_UP:])
        faster = 1 / against(first.wall, one.wall)
        more = against(first.processor, one.processor) - 1
        yield (
            f"{name} | {median:.3f} | {members / median:.1f} | {faster:.2f} "
            f"| {statistics.median(one.processor[WARM_UP:]):.3f} | {more:+.1%} "
            f"| {one.digest[:12]} |"
        )
    if len({one.digest for one in courses.values()}) != 1:
        raise SystemExit("the digests differ: this is a fault, not a speed")


def against(first: Sequence[float], other: Sequence[float]) -> float:
    """Return the median over rounds of what the other took, as a multiple of the first."""
    pairs = zip(first[WARM_UP:], other[WARM_UP:], strict=True)
    return statistics.median(there / here for here, there in pairs)


if __name__ == "__main__":
    main()
