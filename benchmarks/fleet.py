"""Cost of a fleet: engines in processes and on Ray compared with one engine in this process.

    python -m benchmarks.fleet                     # the tables of docs/benchmarks.md
    python -m benchmarks.fleet --variants here processes-1 --spaces low_rank --generations 30
    python -m benchmarks.fleet --models 22M --population 16 --generations 6

Complete generations of training are timed (ask, evaluate, grade, tell, apply, digest), without a
run directory. The variants take turns, generation by generation, so that other programs slow all of
them, and each is compared with `here` of the same round; the medians of these ratios are shown. All
variants must reach the same digest.

`here` is one engine in this process; `processes-N` and `ray-N` are N remote engines. CPU seconds
show the additional work of remote engines, while wall time also depends on other programs. They are
those of this process and of the engines, without Ray's daemons and the graders.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.shapes import BENCH, save_random
from benchmarks.variant_training import begin_training
from germline.config import Config, load_config

WARM_UP = 2
"""Generations of each variant that are not timed, as threads start and files are read."""
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
    """Return the config of all variants, without the number of engines."""
    rows = max(1, arguments.population * arguments.batch // 8)
    overrides = [
        f"model={model}",
        f"space={space}",
        f"engine.threads={arguments.threads}",
        f"strategy={{population: {arguments.population}, sigma: 0.01, learning_rate: 0.02}}",
        f"batch_size={arguments.batch}",
        f"generations={arguments.generations + WARM_UP}",
        f"microbatch.rows={rows}",  # eight microbatches per generation
    ]
    return load_config("configs/arithmetic.yaml", overrides)


def compare(config: Config, variants: Sequence[str]) -> Iterator[str]:
    """Train with each variant, taking turns; yield the rows of the table."""
    with ExitStack() as cleanup:
        trainings = {name: begin_training(config, name, cleanup) for name in variants}
        for _ in range(config.generations):
            for training in trainings.values():
                training.step()
    first, members = trainings[variants[0]], config.strategy.population or 0
    for name, training in trainings.items():
        median = statistics.median(training.wall[WARM_UP:])
        faster = 1 / against(first.wall, training.wall)
        more = against(first.processor, training.processor) - 1
        yield (
            f"{name} | {median:.3f} | {members / median:.1f} | {faster:.2f} "
            f"| {statistics.median(training.processor[WARM_UP:]):.3f} | {more:+.1%} "
            f"| {training.digest[:12]} |"
        )
    if len({training.digest for training in trainings.values()}) != 1:
        raise SystemExit("the digests differ: this is a fault, not a speed")


def against(first: Sequence[float], other: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of the other variant to the first."""
    pairs = zip(first[WARM_UP:], other[WARM_UP:], strict=True)
    return statistics.median(there / here for here, there in pairs)


if __name__ == "__main__":
    main()
