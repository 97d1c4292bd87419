"""Stability of long runs: whether scores hold when a run is much longer than planned.

    python -m benchmarks.stability --tasks countdown multiplication --seeds 0 1     # a part
    python -m benchmarks.stability                                                  # everything
    python -m benchmarks.stability --table                 # print the tables of finished runs
    python -m benchmarks.stability --task my_task.yaml     # any config, its generations times 10

Every cell of the benchmark's grid (task, space, method, run seed) trains for ten times the
generations of the shipped config and scores the center on held-out examples every five generations.
`default` uses the default settings, which measure `sigma` and `learning_rate`. `rate R` is the
baseline: z-scores and SGD at the sigma of earlier shipped configs, with a fixed learning rate of R
times sigma, tuned on the grid 0.5, 1, 2, 4. The best rate of a task and space has the best mean
final score over its seeds; of equal ones, the rate that reached it first.

Each cell runs in a process with one thread, two at a time, and writes its curve to a JSON file.
Cells that have a file are not run again, so an interrupted benchmark can be continued; with
`--runs FOLDER` their run directories stay, for `germline eval FOLDER/CELL -g best -g 249`.
Rollouts are those of training: members times examples, plus those of calibrating sigma. Rollouts
of held-out scores are not counted.

A method may also be settings, such as `space.rank=4`, to see whether the defaults carry over:

    python -m benchmarks.stability --longer 1 --tasks countdown --spaces low_rank lora full \
        --methods default space.rank=4
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Self

import numpy as np

RESULTS = Path(__file__).parent / "results" / "stability"
LONGER = 10
"""Times the shipped generations."""

RATES = (0.5, 1.0, 2.0, 4.0)
"""Fixed learning rates of the baseline, as multiples of sigma."""

BASELINES = tuple(f"rate {rate:g}" for rate in RATES)

MOST_SEEDS = 100
"""Run seeds that tables contain, if they were run."""

REACHED = 0.9
"""Share of the way from the starting score to the baseline's best that counts as reached."""


COLUMNS = "task, space, method, seeds, best, final, worst drop, rollouts to 90 %, times fewer"
HEADING = (f"| {COLUMNS.replace(', ', ' | ')} |", "|---|---|---|---|---|---|---|---|---|")


@dataclass(frozen=True)
class Setup:
    """A task of the benchmark.

    Attributes:
        config: shipped config, or a path.
        sigma: sigma of the baseline.
        held_out: number of examples of a held-out score.
    """

    config: str
    sigma: float = 0.01
    held_out: int = 300
    lower_is_better: bool = False


SETUPS = {
    "conciseness": Setup("conciseness", held_out=50, lower_is_better=True),
    "arithmetic": Setup("arithmetic", held_out=188),
    "countdown": Setup("countdown", sigma=0.005, held_out=500),
    "multiplication": Setup("multiplication", held_out=14),
}


@dataclass(frozen=True)
class Cell:
    """One training of the benchmark."""

    task: str
    space: str
    method: str
    seed: int
    longer: int = LONGER

    @property
    def path(self) -> Path:
        """The file of its curve."""
        words = [Path(self.task).stem, self.space, self.method, f"seed{self.seed}"]
        if self.longer != LONGER:
            words.append(f"times{self.longer}")
        return RESULTS / f"{'-'.join(words).replace(' ', '_')}.json"

    def overrides(self) -> list[str]:
        """Return the overrides of its config."""
        settings = [f"space.kind={self.space}"]
        kind, _, rate = self.method.partition(" ")
        if kind == "rate":
            sigma = setup_of(self.task).sigma
            settings += [
                f"strategy={{kind: nes, population: 32, sigma: {sigma}, "
                f"learning_rate: {float(rate) * sigma:g}}}",
                "batch_size=32",
                "shaping=z_score",
            ]
        elif kind != "default":
            settings += self.method.split()
        return settings


@dataclass(frozen=True)
class Curve:
    """The scores of a cell during its training.

    Attributes:
        generations: updates before each score.
        rollouts: rollouts of training before each score.
        scores: scores of the center, on the same held-out examples.
        seconds: seconds of the whole training.
    """

    cell: Cell
    generations: list[int]
    rollouts: list[int]
    scores: list[float]
    seconds: float
    sign: int = field(default=1)

    @classmethod
    def read(cls, cell: Cell) -> Self | None:
        """Return the curve in the file of a cell; None if there is none."""
        if not cell.path.exists():
            return None
        return cls(**(json.loads(cell.path.read_text()) | {"cell": cell}))

    def best(self) -> float:
        """Return the best score."""
        return self.sign * max(self.sign * score for score in self.scores)

    def drop(self) -> float:
        """Return the difference of the final score to the best one; 0 or more."""
        return max(0.0, self.sign * (self.best() - self.scores[-1]))

    def rollouts_to(self, score: float) -> float:
        """Return the rollouts after which a score is reached, interpolated; else infinite."""
        before = None
        for rollouts, found in zip(self.rollouts, self.scores, strict=True):
            if self.sign * (found - score) >= 0:
                if before is None or found == before[1]:
                    return rollouts
                share = (score - before[1]) / (found - before[1])
                return before[0] + share * (rollouts - before[0])
            before = (rollouts, found)
        return float("inf")


def setup_of(task: str) -> Setup:
    """Return the setup of a task of the table, or of a config file of the user's."""
    return SETUPS[task] if task in SETUPS else Setup(task)


def run(cell: Cell, runs: Path | None) -> None:
    """Train one cell and write its curve; its run directory is kept if `runs` is a folder."""
    from germline import load_config, train

    setup = setup_of(cell.task)
    shipped = Path("configs") / f"{setup.config}.yaml"
    path = shipped if shipped.exists() else Path(setup.config)
    generations = cell.longer * load_config(path, []).generations
    config = load_config(
        path,
        [
            *cell.overrides(),
            f"seed={cell.seed}",
            f"generations={generations}",
            "held_out.every=5",
            f"held_out.examples={setup.held_out}",
            "record={rollouts: 0, tensorboard: false, snapshot_every: 100000}",
        ],
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        training = train(config, runs / cell.path.stem if runs else Path(folder) / "run")
        counts = [len(record.evaluation.rollouts) for record in training]
        scores = [one.score for one in training.directory.held_out()]
    rollouts = np.cumsum([0, *counts])
    curve = Curve(
        cell,
        [score.generation for score in scores],
        [int(rollouts[score.generation]) for score in scores],
        [score.mean for score in scores],
        time.perf_counter() - began,
        -1 if setup.lower_is_better else 1,
    )
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    cell.path.write_text(json.dumps(asdict(curve)) + "\n")


def run_all(cells: Sequence[Cell], together: int, runs: Path | None) -> None:
    """Run the cells without a curve, `together` processes at a time."""
    kept = ["--runs", str(runs)] if runs else []

    def start(cell: Cell) -> None:
        words = [cell.task, cell.space, cell.method, str(cell.seed)]
        command = [sys.executable, "-m", "benchmarks.stability", "--longer", str(cell.longer)]
        done = subprocess.run(
            [*command, *kept, "--cell", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        shown = f"{curve.scores[-1]:.3g}" if (curve := Curve.read(cell)) else done.stderr[-2000:]
        print(f"{cell.task} {cell.space} {cell.method} seed {cell.seed}: {shown}", flush=True)

    with ThreadPoolExecutor(together) as pool:
        list(pool.map(start, [cell for cell in cells if not cell.path.exists()]))


def curves(cell: Cell) -> list[Curve]:
    """Return the curves of all finished seeds of a cell."""
    found = [Curve.read(replace(cell, seed=seed)) for seed in range(MOST_SEEDS)]
    return [one for one in found if one]


def rows(
    tasks: Sequence[str], spaces: Sequence[str], methods: Sequence[str], longer: int
) -> Iterator[str]:
    """Return one row of the table for every method of a task and a space."""
    yield from HEADING
    for task in tasks:
        for space in spaces:
            found = {one: curves(Cell(task, space, one, 0, longer)) for one in methods}
            tuned = tuned_rate(found)
            for method, some in found.items():
                if some:
                    name = f"{method} (tuned)" if method == tuned else method
                    yield row(task, space, name, some, found.get(tuned or "", []))


def draw(path: Path, tasks: Sequence[str], methods: Sequence[str], longer: int) -> None:
    """Draw the first seed of every method: score against rollouts, a panel for each task."""
    from germline.report import charts, plots

    panels = []
    for task in tasks:
        found = {method: curves(Cell(task, "low_rank", method, 0, longer)) for method in methods}
        series = [
            charts.Series(one, some[0].rollouts[1:], some[0].scores[1:], (), (), color, "points")
            for color, (one, some) in enumerate(found.items())
            if some
        ]
        panels.append(charts.Chart(task, "", "rollouts", series))
    title = f"Held-out score of the center, {longer} times the shipped generations, one run seed"
    plots.draw_panels(path, title, [replace(panel, log_x=True) for panel in panels])


def tuned_rate(found: dict[str, list[Curve]]) -> str | None:
    """Return the fixed rate with the best mean final score; of equal ones, the fastest."""
    fixed = {
        one: (
            statistics.fmean(curve.sign * curve.scores[-1] for curve in some),
            -statistics.fmean(curve.rollouts_to(target(curve, some)) for curve in some),
        )
        for one, some in found.items()
        if one.startswith("rate") and some
    }
    return max(fixed, key=lambda one: fixed[one]) if fixed else None


def row(
    task: str, space: str, method: str, found: Sequence[Curve], baseline: Sequence[Curve]
) -> str:
    """Return one row: means over seeds, the largest drop, rollouts against the tuned baseline."""
    reach = ratios(found, baseline)
    times = f"{np.nanmedian(reach):.2g} [{min(reach):.2g}, {max(reach):.2g}]" if reach else ""
    need = [one.rollouts_to(target(one, baseline)) for one in found] if baseline else []
    columns = [
        *(task, space, method, f"{len(found)}"),
        f"{statistics.fmean(one.best() for one in found):.3g}",
        f"{statistics.fmean(one.scores[-1] for one in found):.3g}",
        f"{max(one.drop() for one in found):.3g}",
        f"{np.median(need):,.0f}" if need else "",
        times,
    ]
    return f"| {' | '.join(columns)} |"


def target(curve: Curve, baseline: Sequence[Curve]) -> float:
    """Return the score that counts as reached: 90 % of the way to the baseline's mean best."""
    start = curve.scores[0]
    best = statistics.fmean(one.best() for one in baseline)
    return start + REACHED * (best - start)


def ratios(found: Sequence[Curve], baseline: Sequence[Curve]) -> list[float]:
    """Return the ratio of the baseline's rollouts to those of each seed, at the same seed."""
    by_seed = {one.cell.seed: one for one in baseline}
    pairs = [(one, by_seed[one.cell.seed]) for one in found if one.cell.seed in by_seed]
    return [
        theirs.rollouts_to(target(theirs, baseline)) / ours.rollouts_to(target(ours, baseline))
        for ours, theirs in pairs
    ]


def main() -> None:
    """Run the cells without a curve, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(SETUPS))
    parser.add_argument("--task", help="a config file of your own, instead of --tasks")
    parser.add_argument("--spaces", nargs="+", default=["low_rank"])
    parser.add_argument("--methods", nargs="+", default=None)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--longer", type=int, default=LONGER)
    parser.add_argument("--together", type=int, default=2, help="processes at a time")
    parser.add_argument("--table", action="store_true", help="print tables, run nothing")
    parser.add_argument("--figure", type=Path, help="also draw the curves into this PNG file")
    parser.add_argument("--runs", type=Path, help="keep the run directories in this folder")
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        task, space, method, seed = arguments.cell
        run(Cell(task, space, method, int(seed), arguments.longer), arguments.runs)
        return
    tasks, spaces = [arguments.task] if arguments.task else arguments.tasks, arguments.spaces
    methods = arguments.methods or ["default", *BASELINES]
    cells = [
        Cell(task, space, method, seed, arguments.longer)
        for seed, task, space, method in product(arguments.seeds, tasks, spaces, methods)
    ]
    if not arguments.table:
        run_all(cells, arguments.together, arguments.runs)
    if arguments.figure:
        draw(arguments.figure, tasks, methods, arguments.longer)
    print("\n".join(rows(tasks, spaces, methods, arguments.longer)))


if __name__ == "__main__":
    main()
