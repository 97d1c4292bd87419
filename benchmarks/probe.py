"""Does `germline probe` recommend a good pair: against the best cell of a 4 x 4 grid.

    python -m benchmarks.probe                        # the tables of docs/benchmarks.md
    python -m benchmarks.probe --tasks arithmetic --out runs/probe-benchmark

For every task: its shipped config at sixteen pairs of sigma and learning rate, one run each; the
best cell once more on fresh run seeds, because the best of sixteen had luck; the pair that the
probe recommends on the same fresh seeds. A score is the task's metric on all held-out examples,
which neither the runs nor the probe train on. Everything finished is kept in the folder, so a
stopped benchmark goes on where it was.
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
"""Held-out examples per score: all there are, or 500."""

SIGMAS = (0.001, 0.003, 0.01, 0.03)
RATES = (0.003, 0.01, 0.03, 0.1)
GRID_SEED, FRESH_SEEDS = 0, (1, 2, 3)


@dataclass(frozen=True)
class Outcome:
    """One run: held-out metric before and after, and along the way as (updates, metric)."""

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
        """Return the shipped config, of as many generations as the benchmark runs."""
        return load_config(
            Path("configs") / f"{self.task}.yaml",
            [f"generations={self.generations}", "engine.threads=1", *overrides],
        )

    def run(self, sigma: float, learning_rate: float, seed: int) -> Outcome:
        """Train at one pair, or read what an earlier run came to."""
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
            "record={rollouts: 0, tensorboard: false, figure_every: 1000}",
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
        """Probe, or read what an earlier probe recommended: sigma and learning rate."""
        file = self.folder / f"{self.task}-{self.generations}-advice.json"
        if not file.exists():
            # Time enough for all of it on a busy machine: what it finds does not depend on that.
            # The grid is in weight units.
            found = probe(self.config("strategy.sigma_unit=constant"), minutes=60.0)
            self._keep(file, {"sigma": found.sigma, "learning_rate": found.learning_rate})
        values = json.loads(file.read_text())
        return values["sigma"], values["learning_rate"]

    def gain(self, outcomes: Sequence[Outcome]) -> float:
        """Return how much better runs ended than they began, on average; costs fall."""
        mean = statistics.fmean(one.after - one.before for one in outcomes)
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
    """Lay out the improvements of all cells."""
    lines = [
        f"| {bench.task}, sigma \\ rate | {' | '.join(f'{rate:g}' for rate in RATES)} |",
        "|---" * (1 + len(RATES)) + "|",
    ]
    for sigma, row in zip(SIGMAS, grid, strict=True):
        cells = " | ".join(f"{bench.gain([one]):.3g}" for one in row)
        lines.append(f"| {sigma:g} | {cells} |")
    return "\n".join(lines)


def comparison(bench: Bench, best: tuple[float, float]) -> str:
    """Run the best cell and the recommended pair on fresh seeds, and compare them."""
    lines = [
        f"| {bench.task} | sigma | rate | after, by seed | improvement | of the best cell |",
        "|---|---|---|---|---|---|",
    ]
    reference = None
    for name, pair in (("best cell", best), ("recommended", bench.advice())):
        outcomes = [bench.run(*pair, seed) for seed in FRESH_SEEDS]
        gain = bench.gain(outcomes)
        reference = gain if reference is None else reference
        after = ", ".join(f"{one.after:.3g}" for one in outcomes)
        numbers = f"{pair[0]:g} | {pair[1]:g} | {after} | {gain:.3g} | {gain / reference:.0%}"
        lines.append(f"| {name} | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
