"""How often the detectors of `germline.evaluation.behavior` flag good answers.

    python -m benchmarks.false_alarms runs/sums runs/countdown gsm8k_train.jsonl gsm8k_test.jsonl

Of a run, the recorded held-out answers before and after training; of JSONL files of {question,
answer}, the solutions that people wrote, the first file as the start of those after it.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from germline.evaluation.behavior import Answer, Answers, behavior, flags, recorded_answers, verdict
from germline.record import RunDirectory
from germline.types import Completion


def main() -> None:
    """Print a row of a table for each set of answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, nargs="+", metavar="RUN|FILE")
    sources = parser.parse_args().sources
    files = [(file.name, _solutions(file)) for file in sources if file.is_file()]
    pairs = [pair for run in sources if run.is_dir() for pair in _answers(run)]
    pairs += [(name, answers, files[0][1]) for name, answers in files]
    print("| answers | texts | flagged | verdict |\n|---|---|---|---|")
    for name, answers, start in pairs:
        counts = Counter(flag for one in flags(answers, start) for flag in one)
        found = ", ".join(f"{flag} {n}" for flag, n in counts.items()) or "none"
        word = verdict(behavior(start, start), behavior(answers, start)).word
        print(f"| {name} | {len(answers)} | {found} | {word} |")


def _answers(run: Path) -> Iterator[tuple[str, Answers, Answers]]:
    """Yield the recorded answers before and after training, and those before."""
    scored = [row for row in RunDirectory.open(run).held_out() if row.samples]
    start = recorded_answers(scored[0].samples)
    for row in scored:
        name = f"{run.name}, {row.score.metric} {row.score.mean:.2f}"
        yield name, recorded_answers(row.samples), start


def _solutions(file: Path) -> Answers:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Answer(one["question"], Completion(one["answer"], (), "eos", 0)) for one in rows]


if __name__ == "__main__":
    main()
