"""Additions to the default search, one at a time, compared with the default search.

    python -m benchmarks.search_candidates                  # everything
    python -m benchmarks.search_candidates --candidates average anchor --seeds 0 1 2
    python -m benchmarks.search_candidates --table          # print the table of finished runs

A candidate changes the strategy, the shaping or the fleet of a run; its docstring has the equation.
Every combination of candidate, task and run seed trains for `--longer` times the generations of the
shipped config, scores the center on held-out examples every five generations, and writes its curve
to a JSON file; a combination that has a file is not run again. Rollouts are those of training and
additional ones of the candidate. `growth` stops at the number of rollouts of the other candidates.

The table compares each run with that of `default` at the same seed. The target is 90 % of the way
from the start to the best score of `default` (mean over seeds). The last column is the factor by
which a run needs fewer rollouts to reach it: the median over seeds, with the smallest and the
largest; 0 if a run does not reach it. The training fitness is the mean over the members of the last
fifty generations.

The journal does not contain the changes of a candidate, so such runs cannot be replayed.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.search_changes import (
    Anchor,
    Average,
    CenterFleet,
    Reuse,
    TrustRegion,
    as_it_is,
    with_finite_examples,
    with_fleet,
    with_growth,
    with_shrunk_utilities,
)
from benchmarks.stability import Cell, Curve, ratios, setup_of, target
from germline import load_config
from germline.config import Config
from germline.evaluation import HELD_OUT_NOISE, score_center
from germline.run.build_parts import RunParts, build_run_parts
from germline.training import generations

LATEST = 10
"""Last scores of a run over which the training fitness is averaged."""

RESULTS = Path(__file__).parent / "results" / "search_candidates"
SCORE_EVERY = 5
"""Generations between held-out scores."""


@dataclass(frozen=True)
class Candidate:
    """A change of the default search.

    Attributes:
        change: changes the objects of a run.
        settings: overrides of the config.
    """

    change: Callable[[RunParts], RunParts] = as_it_is
    settings: tuple[str, ...] = ()


CANDIDATES = {
    "default": Candidate(),
    "trust_region": Candidate(with_fleet(TrustRegion)),
    "average": Candidate(with_fleet(Average)),
    "anchor": Candidate(with_fleet(Anchor)),
    "reuse": Candidate(with_fleet(Reuse)),
    "growth": Candidate(with_growth),
    "finite_examples": Candidate(with_finite_examples),
    "shrunk": Candidate(with_shrunk_utilities),
    "per_example": Candidate(settings=("shaping={kind: per_example, scale: std}",)),
}


@dataclass(frozen=True)
class CandidateCurve(Curve):
    """A curve with the fitness in training.

    Attributes:
        fitness: mean fitness of the members since the score before; empty in older files.
    """

    fitness: list[float] = field(default_factory=list)


def run(cell: Cell) -> CandidateCurve:
    """Train with the candidate that `cell.method` names, and return its curve."""
    setup, candidate = setup_of(cell.task), CANDIDATES[cell.method]
    settings = [*candidate.settings, f"seed={cell.seed}"]
    config = load_config(Path("configs") / f"{setup.config}.yaml", settings)
    config = config.model_copy(update={"generations": cell.longer * config.generations})
    curve = CandidateCurve(cell, [], [], [], 0.0, -1 if setup.lower_is_better else 1)
    for done, rollouts, score, fitness in scored(config, candidate, setup.held_out):
        curve.generations.append(done)
        curve.rollouts.append(rollouts)
        curve.scores.append(score)
        curve.fitness.extend(fitness)
    return curve


def scored(
    config: Config, candidate: Candidate, examples: int
) -> Iterator[tuple[int, int, float, list[float]]]:
    """Train, and yield generations, rollouts, held-out score and the fitness in between.

    The fitness is the mean over the members of the generations since the score before, in a list
    that is empty at the start.

    Args:
        config: config of the run.
        candidate: the change of the search.
        examples: number of examples of a held-out score.
    """
    planned = config.generations
    budget = planned * (config.strategy.population or 1) * config.batch_size
    with build_run_parts(config) as whole:
        parts = candidate.change(whole)
        chosen = parts.task.examples("test")[:examples]

        def score(generation: int) -> float:
            sampling_noise = replace(parts.decoding, noise_stream=HELD_OUT_NOISE)
            return score_center(parts.fleet, parts.task, chosen, sampling_noise, generation)[0].mean

        yield 0, 0, score(0), []
        evaluated = 0
        since: list[float] = []
        for record in generations(
            parts.strategy, parts.shape, parts.fleet, parts.batch, parts.decoding, range(planned)
        ):
            evaluated += len(record.evaluation.rollouts)
            since.append(statistics.fmean(record.fitness))
            beside = parts.fleet.extra if isinstance(parts.fleet, CenterFleet) else 0
            done = record.generation + 1
            last = done == planned or evaluated >= budget
            if last or done % SCORE_EVERY == 0:
                yield done, evaluated + beside, score(done), [statistics.fmean(since)]
                since.clear()
            if last:
                return


def path_of(cell: Cell) -> Path:
    """Return the file of a combination."""
    return RESULTS / f"{cell.task}-{cell.method}-seed{cell.seed}-times{cell.longer}.json"


def rows(
    tasks: Sequence[str], names: Sequence[str], seeds: Sequence[int], longer: int
) -> Iterator[str]:
    """Return the table of all finished runs."""
    yield (
        "| task | candidate | seeds | best | final | worst drop | training fitness "
        "| times fewer rollouts |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for task in tasks:
        base = found(task, "default", seeds, longer)
        for name in names:
            if curves := found(task, name, seeds, longer):
                yield row(task, name, curves, base)


def found(task: str, name: str, seeds: Sequence[int], longer: int) -> list[CandidateCurve]:
    """Return the curves of a candidate on a task."""
    cells = [Cell(task, "low_rank", name, seed, longer) for seed in seeds]
    curves = [CandidateCurve.read(cell, path_of(cell)) for cell in cells]
    return [curve for curve in curves if curve]


def row(
    task: str, name: str, curves: Sequence[CandidateCurve], base: Sequence[CandidateCurve]
) -> str:
    """Return one row: means over seeds, the largest drop, and rollouts against `default`."""
    to = target(curves[0], base)  # all runs of a task start at the same score
    learned = to != curves[0].scores[0]
    reach = ratios(curves, base) if learned else []
    times = f"{np.nanmedian(reach):.2g} [{min(reach):.2g}, {max(reach):.2g}]" if reach else "-"
    trained = [statistics.fmean(curve.fitness[-LATEST:]) for curve in curves if curve.fitness]
    columns = [
        *(task, f"`{name}`", f"{len(curves)}"),
        f"{statistics.fmean(curve.best() for curve in curves):.3g}",
        f"{statistics.fmean(curve.scores[-1] for curve in curves):.3g}",
        f"{max(curve.drop() for curve in curves):.3g}",
        f"{statistics.fmean(trained):.3g}" if trained else "-",
        times,
    ]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    """Run the combinations without a curve, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["countdown", "multiplication"])
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES), choices=CANDIDATES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--longer", type=int, default=1, help="times the shipped generations")
    parser.add_argument("--table", action="store_true", help="print the table, run nothing")
    arguments = parser.parse_args()
    cells = [
        Cell(task, "low_rank", name, seed, arguments.longer)
        for seed in arguments.seeds
        for task in arguments.tasks
        for name in arguments.candidates
    ]
    for cell in cells:
        if not arguments.table and not path_of(cell).exists():
            curve = run(cell)
            RESULTS.mkdir(parents=True, exist_ok=True)
            path_of(cell).write_text(json.dumps(asdict(curve)) + "\n")
            print(f"{cell.task} {cell.method} seed {cell.seed}: {curve.scores}", flush=True)
    print("\n".join(rows(arguments.tasks, arguments.candidates, arguments.seeds, arguments.longer)))


if __name__ == "__main__":
    main()
