"""Cost of a slow grader: the same microbatches graded without delay, and in 50 ms per completion.

    python -m benchmarks.graders                       # the table of docs/results.md
    python -m benchmarks.graders --computes            # a grader that needs a processor
    python -m benchmarks.graders --workers 8 16        # with more processes

The nano model generates long completions in microbatches of few rows, as a larger model does.
Grading runs in parallel with generation while the pool keeps up, that is, while `workers` is at
least the completions per second times the seconds of grading one. Only the grading of the last
microbatch adds to the time. The grader waits, like one that calls a service or starts a program;
with `--computes` it uses the same processors as the generation.

Every row is the median of `--repeats` generations; the two kinds of grading are measured one after
the other. The processes of the pool are started before.
"""

import argparse
import statistics
import time

import torch

from benchmarks.slow_grader import SlowGrader
from germline.config import Config, load_config
from germline.graders.pool import GraderPool
from germline.rollout import evaluate_members
from germline.run.build_parts import make_decoding, make_engine
from germline.strategies import make_strategy
from germline.tasks import make_task

RUBRIC = {"length": 1.0}
FLOOR = {"length": 0.0}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time a generation with a slow grader.")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--milliseconds", type=float, default=50.0)
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--rows", type=int, default=32, help="rows of a microbatch")
    parser.add_argument("--tokens", type=int, default=128, help="longest completion")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--computes", action="store_true", help="the grader computes")
    arguments = parser.parse_args()
    config = load_config(
        {
            # No stop strings, high temperature, plain prompts: few completions end early.
            "task": {
                "kind": "countdown",
                "temperature": 3.0,
                "max_new_tokens": arguments.tokens,
            },
            "strategy": {"population": arguments.members, "sigma": 0.005},
            "batch_size": arguments.examples,
            "microbatch": {"rows": arguments.rows},
        }
    )
    print(f"nano, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(
        f"{arguments.members} members x {arguments.examples} examples in microbatches of "
        f"{arguments.rows} rows, {arguments.milliseconds:g} ms per completion, grader "
        f"{'computes' if arguments.computes else 'waits'}\n"
    )
    print("| workers | completions/s | graded at once, s | graded slowly, s | added |")
    print("|---|---|---|---|---|")
    slow = SlowGrader(arguments.milliseconds / 1e3, computes=arguments.computes)
    bench = Bench(config)
    for workers in arguments.workers:
        print(bench.row(slow, workers, arguments.repeats), flush=True)


class Bench:
    """One generation that is evaluated repeatedly."""

    def __init__(self, config: Config) -> None:
        task = make_task(config.task)
        strategy = make_strategy(
            config.strategy, run_seed=config.seed, generations=config.generations
        )
        self._engine = make_engine(config)
        self._members = strategy.ask(0).members
        self._batch = task.examples("train")[: config.batch_size]
        self._cell = config.microbatch
        self._decoding = make_decoding(config, task)

    def row(self, slow: SlowGrader, workers: int, repeats: int) -> str:
        """Measure one number of workers."""
        quick_s: list[float] = []
        slow_s: list[float] = []
        with pool(SlowGrader(0.0), 1) as at_once, pool(slow, workers) as later:
            for graders in (at_once, later):
                # Enough completions to start every process.
                texts = ["warm"] * 20 * workers
                graders.submit(texts, [self._batch[0]] * len(texts)).result()
                self.generation_s(graders)
            for _ in range(repeats):
                quick_s.append(self.generation_s(at_once))
                slow_s.append(self.generation_s(later))
        without, with_ = statistics.median(quick_s), statistics.median(slow_s)
        added = statistics.median(b / a - 1 for a, b in zip(quick_s, slow_s, strict=True))
        speed = len(self._members) * len(self._batch) / without
        return f"| {workers} | {speed:.0f} | {without:.2f} | {with_:.2f} | {added:+.1%} |"

    def generation_s(self, graders: GraderPool) -> float:
        """Evaluate the generation and wait for all grades; return the seconds."""
        began = time.perf_counter()
        evaluate_members(
            self._engine, graders, self._members, self._batch, self._cell, self._decoding
        )
        return time.perf_counter() - began


def pool(grader: SlowGrader, workers: int) -> GraderPool:
    """Start a pool with a time limit that is never reached."""
    return GraderPool(grader, RUBRIC, FLOOR, workers, timeout_s=60.0)


if __name__ == "__main__":
    main()
