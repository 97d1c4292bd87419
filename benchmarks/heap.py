"""Cost of returning freed memory to the system: generations with and without it.

    python -m benchmarks.heap                      # a table of docs/benchmarks.md
    python -m benchmarks.heap --models 22M --population 16

Each variant has a process of its own, which repeats the same generation; the processes take turns.
`given back` is the default of glibc, `kept` is `germline.engines.malloc_tuning`.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shapes import BENCH, save_random
from germline.config import load_config
from germline.rollout import cut_microbatches
from germline.run.build_parts import make_decoding, make_engine
from germline.strategies import make_strategy
from germline.tasks import make_task

VARIANTS = {"given back": {"GLIBC_TUNABLES": ""}, "kept": {}}
"""Environment variables of the variants; if glibc's settings are given, germline changes none."""


def main() -> None:
    """Print the table, or repeat the generation as one of its variants."""
    parser = argparse.ArgumentParser(description="Generations on a heap that keeps freed memory.")
    parser.add_argument("--models", nargs="+", default=["nano", "22M"], choices=["nano", "22M"])
    parser.add_argument("--population", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--generate", help="model of this process; used by the script itself")
    arguments = parser.parse_args()
    if arguments.generate:
        generate(arguments.generate, arguments.population, arguments.batch)
        return
    print(
        f"arithmetic, {arguments.population} members x {arguments.batch} prompts, medians of "
        f"{arguments.repeats} generations, {os.environ.get('OMP_NUM_THREADS', 'all')} threads\n"
    )
    print(
        "| model | freed memory | seconds | of processors | in the system | page faults "
        "| resident at most, MB |\n|---|---|---|---|---|---|---|"
    )
    sizes = [str(arguments.population), str(arguments.batch)]
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            source = model if model == "nano" else save_random(BENCH[model], Path(folder) / model)
            for name, rows in compare(source, sizes, arguments.repeats).items():
                print(f"| {model} | {name} | {shown(rows)} |", flush=True)


def compare(source: str, sizes: Sequence[str], repeats: int) -> dict[str, list[list[float]]]:
    """Run both variants in turn; return the measurements of each generation."""
    population, batch = sizes
    command = [sys.executable, "-m", "benchmarks.heap", "--generate", source]
    command += ["--population", population, "--batch", batch]
    running = {
        name: subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, environment in VARIANTS.items()
    }
    found: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    for repeat in range(repeats + 2):
        for name, process in running.items():
            row = [float(word) for word in asked(process).split()]
            if repeat > 1:  # the first repeats fill the heap
                found[name].append(row)
    for process in running.values():
        process.communicate()
    return found


def asked(process: subprocess.Popen[str]) -> str:
    """Let a process run the generation once; return the line that it prints."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def generate(source: str, population: int, batch: int) -> None:
    """Run the generation once for every input line; print the measurements."""
    config = load_config(
        {"task": {"kind": "arithmetic", "max_new_tokens": 16}, "space": "low_rank"},
        [
            f"model={source}",
            f"strategy={{population: {population}, sigma: 0.005}}",
            f"batch_size={batch}",
        ],
    )
    task, engine = make_task(config.task), make_engine(config)
    strategy = make_strategy(config.strategy, run_seed=0, generations=1)
    microbatches = cut_microbatches(
        strategy.ask(0).members, task.examples("train")[:batch], config.microbatch
    )
    for _ in sys.stdin:
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for microbatch in microbatches:
            engine.generate(microbatch.members, microbatch.examples, make_decoding(config, task))
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        system = after.ru_stime - before.ru_stime
        processors = system + after.ru_utime - before.ru_utime
        faults, resident = after.ru_minflt - before.ru_minflt, after.ru_maxrss
        print(seconds, processors, system, faults, resident, flush=True)


def shown(rows: Sequence[Sequence[float]]) -> str:
    """Return the columns of a row, which are medians."""
    seconds, processors, system, faults, resident = map(statistics.median, zip(*rows, strict=True))
    cells = f"{seconds:.3f} | {processors:.3f} | {system:.3f} | {faults:,.0f}"
    return f"{cells} | {resident / 1e3:,.0f}"


if __name__ == "__main__":
    main()
