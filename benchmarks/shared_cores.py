"""Speed of training beside other runs, by the number of threads and how long threads spin.

    python -m benchmarks.shared_cores
    python -m benchmarks.shared_cores --runs 1 2 3 --rounds 2

A thread of OpenMP that waits for another one spins before it sleeps; libgomp's own number of spins
is 300,000 (`GOMP_SPINCOUNT`), germline's is 10,000. Every run is the demo's config with fewer
generations, in a process of its own; several of them train at once. The numbers are the median
and the largest of the seconds that evaluating a population takes, over all runs of all rounds,
without the first generation.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

VARIANTS = {
    "2 threads, 300,000 spins": (2, 300_000),
    "2 threads, 10,000 spins": (2, 10_000),
    "2 threads, 1,000 spins": (2, 1_000),
    "1 thread": (1, 10_000),
}
"""Label -> threads and spins; the first is what ratios are to."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time training beside other runs.")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2], help="runs at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=4)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, {arguments.rounds} rounds, Python {sys.version.split()[0]}\n")
    heads = [f"{count} at once, s | slowest, s | times as fast" for count in arguments.runs]
    print(f"| variant | {' | '.join(heads)} |\n|---{'|---|---|---' * len(heads)}|")
    seconds = measured(arguments.runs, arguments.rounds, arguments.generations)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    first = next(iter(VARIANTS))
    for label in VARIANTS:
        cells = [
            f"{median[label, count]:.2f} | {max(seconds[label, count]):.2f} | "
            f"{median[first, count] / median[label, count]:.2f}"
            for count in arguments.runs
        ]
        print(f"| {label} | {' | '.join(cells)} |")


def measured(
    counts: Sequence[int], rounds: int, generations: int
) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of each evaluation by variant and number of runs at once.

    The variants take turns, so that other programs slow all of them.
    """
    durations: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for count in counts:
            for label, (threads, spins) in VARIANTS.items():
                found = train_at_once(count, threads, spins, generations)
                durations.setdefault((label, count), []).extend(found)
    return durations


def train_at_once(count: int, threads: int, spins: int, generations: int) -> list[float]:
    """Train `count` runs at once; return the seconds of their evaluations but the first."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(place) for place in range(count)]
        programs = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "germline", "train", "demo", "--quiet", "--out", out),
                    *(f"engine.threads={threads}", f"generations={generations}"),
                    *("held_out.every=100", "held_out.examples=8"),
                ],
                env={**os.environ, "GOMP_SPINCOUNT": str(spins)},
                stdout=subprocess.DEVNULL,
            )
            for out in outs
        ]
        statuses = [program.wait() for program in programs]
        if any(statuses):
            raise SystemExit(f"a run ended with status {max(statuses)}")
        rows = [
            json.loads(line)
            for out in outs
            for line in (out / "generations.jsonl").read_text().splitlines()[1:]
        ]
    return [row["timing"]["evaluate_s"] for row in rows]


if __name__ == "__main__":
    main()
