"""Compare the pair that `germline probe` recommends with the best pair of a 4 x 4 grid.

    python -m benchmarks.probe                        # conciseness and arithmetic
    python -m benchmarks.probe --tasks arithmetic --out runs/probe-benchmark

For every task, its shipped config is trained at sixteen pairs of sigma and learning rate, one run
each. The best pair is trained again with new run seeds, because the best score of sixteen runs is
biased; the recommended pair is trained with the same new seeds. A score is the task's metric on all
held-out examples, on which neither the runs nor the probe train. Finished runs are kept in the
folder, so an interrupted benchmark can be continued.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from germline import load_config, train
from germline.config import Config
from germline.studies.probe import probe

HELD_OUT = {"conciseness": 50, "arithmetic": 188, "countdown": 500}
"""Held-out examples per score: all of them, or 500."""

SIGMAS = (0.001, 0.003, 0.01, 0.03)
RATES = (0.003, 0.01, 0.03, 0.1)
GRID_SEED, FRESH_SEEDS = 0, (1, 2, 3)


@dataclass(frozen=True)
class Outcome:
    """One run: held-out metric before and after training, and during it as (updates, metric)."""

    sigma: float
    learning_rate: float
    seed: int
    before: float
    after: float
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Bench:
    """Runs of one task, kept in a folder."""

    task: str
    generations: int
    folder: Path

    def config(self, *overrides: str) -> Config:
        """Return the shipped config with the benchmark's number of generations."""
        return load_config(
            Path("configs") / f"{self.task}.yaml",
            [f"generations={self.generations}", "engine.threads=1", *overrides],
        )

    def run(self, sigma: float, learning_rate: float, seed: int) -> Outcome:
        """Train at one pair, or read the result of an earlier run."""
        file = (
            self.folder / f"{self.task}-{self.generations}-{sigma:g}-{learning_rate:g}-{seed}.json"
        )
        if file.exists():
            values = json.loads(file.read_text())
            return Outcome(**{**values, "curve": tuple(map(tuple, values["curve"]))})
        config = self.config(
            f"strategy.sigma={sigma}",
            f"strategy.learning_rate={learning_rate}",
            f"seed={seed}",
            f"held_out.examples={HELD_OUT[self.task]}",
            "held_out.every=5",
            "record={rollouts: 0, tensorboard: false}",
        )
        with tempfile.TemporaryDirectory() as folder:
            training = train(config, Path(folder) / "run")
            for _ in training:
                pass
            scores = [one.score for one in training.directory.held_out()]
        curve = tuple((score.generation, score.mean) for score in scores)
        outcome = Outcome(sigma, learning_rate, seed, curve[0][1], curve[-1][1], curve)
        self._keep(file, asdict(outcome))
        return outcome

    def advice(self) -> tuple[float, float]:
        """Return the recommended sigma and learning rate, of this or an earlier probe."""
        file = self.folder / f"{self.task}-{self.generations}-advice.json"
        if not file.exists():
            # Enough time for the whole probe on a busy machine; the result does not depend on it.
            # The grid is in weight units.
            found = probe(self.config("strategy.sigma_unit=constant"), minutes=60.0)
            self._keep(file, {"sigma": found.sigma, "learning_rate": found.learning_rate})
        values = json.loads(file.read_text())
        return values["sigma"], values["learning_rate"]

    def gain(self, outcomes: Sequence[Outcome]) -> float:
        """Return the mean improvement of runs; a lower cost counts as positive."""
        mean = statistics.fmean(outcome.after - outcome.before for outcome in outcomes)
        return -mean if self.task == "conciseness" else mean

    def _keep(self, file: Path, values: Mapping[str, object]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Compare the probe's advice with a grid.")
    parser.add_argument("--tasks", nargs="+", default=["conciseness", "arithmetic"])
    parser.add_argument("--generations", type=int, default=25)
    parser.add_argument("--out", type=Path, default=Path("runs/probe-benchmark"))
    arguments = parser.parse_args()
    print(f"nano, {arguments.generations} generations, 1 thread, torch {torch.__version__}")
    for task in arguments.tasks:
        bench = Bench(task, arguments.generations, arguments.out)
        grid = [[bench.run(sigma, rate, GRID_SEED) for rate in RATES] for sigma in SIGMAS]
        print(f"\n{grid_table(bench, grid)}", flush=True)
        best = max((one for row in grid for one in row), key=lambda one: bench.gain([one]))
        print(f"\n{comparison(bench, (best.sigma, best.learning_rate))}", flush=True)


def grid_table(bench: Bench, grid: Sequence[Sequence[Outcome]]) -> str:
    """Return the table of the improvements of all pairs."""
    lines = [
        f"| {bench.task}, sigma \\ rate | {' | '.join(f'{rate:g}' for rate in RATES)} |",
        "|---" * (1 + len(RATES)) + "|",
    ]
    for sigma, row in zip(SIGMAS, grid, strict=True):
        cells = " | ".join(f"{bench.gain([one]):.3g}" for one in row)
        lines.append(f"| {sigma:g} | {cells} |")
    return "\n".join(lines)


def comparison(bench: Bench, best: tuple[float, float]) -> str:
    """Run the best and the recommended pair with new seeds, and compare them."""
    lines = [
        f"| {bench.task} | sigma | rate | after, by seed | improvement | of the best pair |",
        "|---|---|---|---|---|---|",
    ]
    reference = None
    for name, pair in (("best pair", best), ("recommended", bench.advice())):
        outcomes = [bench.run(*pair, seed) for seed in FRESH_SEEDS]
        gain = bench.gain(outcomes)
        reference = gain if reference is None else reference
        after = ", ".join(f"{outcome.after:.3g}" for outcome in outcomes)
        numbers = f"{pair[0]:g} | {pair[1]:g} | {after} | {gain:.3g} | {gain / reference:.0%}"
        lines.append(f"| {name} | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
