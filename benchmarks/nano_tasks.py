"""Scores of the nano model before and after training: every shipped task, five run seeds.

    python -m benchmarks.nano_tasks                    # the table of docs/results.md
    python -m benchmarks.nano_tasks --tasks arithmetic --seeds 0 1

Each run uses the shipped config with another seed. The score is the task's metric on held-out
examples, before and after training, with its standard error over examples. The last column is the
wall time of the training loop, including held-out scores.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from germline import load_config, train
from germline.types import HeldOutScore

HELD_OUT = {"conciseness": 50, "arithmetic": 188, "countdown": 500, "wordle": 33}
"""Held-out examples per score: all of them, or 500."""


@dataclass(frozen=True)
class Outcome:
    """One run: scores before and after, and the seconds of training."""

    seed: int
    before: HeldOutScore
    after: HeldOutScore
    seconds: float

    def change(self, task: str) -> float:
        """Return the change in percent of the start (conciseness) or in points (the others)."""
        difference = self.after.mean - self.before.mean
        return 100 * (difference / self.before.mean if task == "conciseness" else difference)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Train the nano model on every shipped task.")
    parser.add_argument("--tasks", nargs="+", default=list(HELD_OUT))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    print(f"nano, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| task | seed | metric | n | before | after | change | training, s |")
    print("|---|---|---|---|---|---|---|---|")
    for task in arguments.tasks:
        outcomes = [run(task, seed) for seed in arguments.seeds]
        print(summary(task, outcomes), flush=True)


def run(task: str, seed: int) -> Outcome:
    """Train once with a shipped config and print its row."""
    overrides = [f"seed={seed}", f"held_out.examples={HELD_OUT[task]}", "held_out.every=1000"]
    config = load_config(Path("configs") / f"{task}.yaml", overrides)
    with tempfile.TemporaryDirectory() as folder:
        training = train(config, Path(folder) / "run")
        began = time.perf_counter()
        for _ in training:
            pass
        seconds = time.perf_counter() - began
        before, after = training.start, training.end
    assert before is not None
    assert after is not None
    outcome = Outcome(seed, before, after, seconds)
    print(
        f"| {task} | {seed} | {before.metric} | {before.n} | {shown(before)} | {shown(after)} | "
        f"{changed(task, outcome.change(task))} | {seconds:.0f} |",
        flush=True,
    )
    return outcome


def summary(task: str, outcomes: list[Outcome]) -> str:
    """Return the row of all seeds: means over runs with their 95 % intervals."""
    after = [outcome.after.mean for outcome in outcomes]
    changes = [outcome.change(task) for outcome in outcomes]
    seconds = statistics.median(outcome.seconds for outcome in outcomes)
    return (
        f"| **{task}** | all {len(outcomes)} | {outcomes[0].before.metric} | | "
        f"{outcomes[0].before.mean:.3g} | {interval(after)} | {interval(changes)} | "
        f"median {seconds:.0f} |"
    )


def shown(score: HeldOutScore) -> str:
    """Return mean and standard error over examples."""
    return f"{score.mean:.3g} ± {score.standard_error:.2g}"


def changed(task: str, change: float) -> str:
    """Return a change with its unit."""
    return f"{change:+.1f} {'%' if task == 'conciseness' else 'points'}"


def interval(values: list[float]) -> str:
    """Return the mean over runs and a bootstrap 95 % interval of it (10,000 resamples, seeded)."""
    draws = np.random.default_rng(0).choice(values, size=(10_000, len(values))).mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return f"{statistics.fmean(values):.3g} [{low:.3g}, {high:.3g}]"


if __name__ == "__main__":
    main()
