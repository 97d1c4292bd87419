"""Probability of the right answer over long runs: whether a drop is real where examples are few.

    python -m benchmarks.stability --tasks multiplication --methods default "rate 2" --runs runs
    python -m benchmarks.answer_probability --runs runs     # measure the runs that were kept
    python -m benchmarks.answer_probability                 # print the table of measured runs

Multiplication on nano has 14 held-out examples, so the share of right answers moves in steps of 7
points: neither "within 2 points of the best" nor "90 % of the best" can be decided with it. This
benchmark rebuilds the center from the journal every `EVERY` generations, and computes the
probability that the center, sampling at temperature 1, writes exactly the gold answer: the product
of the probabilities of the tokens of the answer and of the end token, mean over the held-out
examples. That is the share of right answers in infinitely many samples, so it has no sampling error
and no steps. Other texts that earn the reward too, such as the answer after a blank, are not
counted: it is a lower bound.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from benchmarks.stability import HEADING, MOST_SEEDS, Cell, Curve, curves, row

RESULTS = Path(__file__).parent / "results" / "answer_probability"
EVERY = 5
"""Generations between two measurements, as between two held-out scores of the stability runs."""


def measure(run: Path) -> list[float]:
    """Return the mean probability of the gold answers after every `EVERY` updates of a run."""
    from germline.engines.inprocess import InProcessEngine
    from germline.record import RunDirectory
    from germline.run.load_run import load_engine
    from germline.tasks import make_task
    from germline.types import Completion

    directory = RunDirectory.open(run)
    engine = load_engine(directory, generation=-1)
    assert isinstance(engine, InProcessEngine)
    examples = make_task(directory.config.task).examples("test")
    tokenizer = engine.pretrained.tokenizer
    gold = []
    for example in examples:
        answer = tokenizer(example.answer, add_special_tokens=False)["input_ids"]
        gold.append(Completion(example.answer, (*answer, tokenizer.eos_token_id), "stop", 0))

    def probability() -> float:
        (logs,) = engine.log_probabilities([None], examples, [gold])
        return math.fsum(math.exp(math.fsum(one)) for one in logs) / len(examples)

    found = [probability()]
    for entry in directory.journal.read():
        engine.weights.apply(entry.update)
        if (entry.update.generation + 1) % EVERY == 0:
            engine.refresh()
            found.append(probability())
    if engine.weights.digest() != entry.digest:
        raise SystemExit(f"{run}: the rebuilt weights differ from those of the run")
    return found


def rows(task: str, methods: Sequence[str], baseline: str) -> Iterator[str]:
    """Return a row for every method, then the best and the final probability of its seeds."""
    yield from HEADING
    found = {one: curves(Cell(task, "low_rank", one, 0), RESULTS) for one in methods}
    for method, some in found.items():
        if some:
            yield row(task, "low_rank", method, some, found.get(baseline, []))
    for method, some in found.items():
        pairs = ", ".join(f"{one.best():.3f} / {one.scores[-1]:.3f}" for one in some)
        yield f"\n{method}, best / final of each seed: {pairs}"


def main() -> None:
    """Measure the runs of a folder, if one is given, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="run directories that benchmarks.stability kept")
    parser.add_argument("--task", default="multiplication")
    parser.add_argument("--methods", nargs="+", default=["default", "rate 2"])
    parser.add_argument("--baseline", default="rate 2", help="the tuned fixed rate")
    arguments = parser.parse_args()
    if arguments.runs:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for method, seed in product(arguments.methods, range(MOST_SEEDS)):
            cell = Cell(arguments.task, "low_rank", method, seed)
            curve, run = Curve.read(cell), arguments.runs / cell.path.stem
            if curve and run.exists():
                text = json.dumps(asdict(replace(curve, scores=measure(run))))
                (RESULTS / cell.path.name).write_text(f"{text}\n")
    print("\n".join(rows(arguments.task, arguments.methods, arguments.baseline)))


if __name__ == "__main__":
    main()
