"""A pretrained model learns small tasks: scores, cost, and what it forgot.

    make smollm2
    python -m benchmarks.real_model --out /tmp/real_model --seeds 3
    python -m benchmarks.real_model --out /tmp/real_model --tasks capital_letters --methods zo_grpo

A cell is a run of configs/smollm2/TASK.yaml in a process of its own, in OUT/TASK/METHOD/SEED; a run
that was interrupted is continued, and a finished cell is read. Held-out scores are greedy. Minutes
are of sampling and scoring, by the clock. The KL divergence from the start and the share of empty,
looping or garbled texts are those of `germline eval --kl`, on the held-out questions.
Forgotten: right answers to 50 short factual questions (`benchmarks.facts`), and nats per token of
the license of this project, before -> after.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from germline.record import RunDirectory

ROOT = Path(__file__).parents[1]
TASKS = ("capital_letters", "the_answer_is")

METHODS: dict[str, list[str]] = {
    "zo_grpo": [],
    "es": [
        "method=es",
        "space.layers=null",
        "strategy={population: 32}",
        "generations=24",
        "held_out.every=1",
    ],
}
"""Settings of a method, beside those of the config."""

AFTER = (192, 384, 576, 768)
"""Rollouts after which scores are printed."""

COST = ("minutes", "tokens/s", "peak MB", "KL per token", "degenerate", "facts", "nats")

RETAINED = {
    "facts": {"task": f"{ROOT}/benchmarks/facts.py", "every": 1000},
    "license": {"text": f"{ROOT}/LICENSE", "examples": 8, "every": 1000},
}
"""What is scored before and after training."""


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    after = [f"after {rollouts}" for rollouts in AFTER]
    columns = ["task", "method", "seed", "before", *after, "end", "rollouts", *COST]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for task in arguments.tasks:
        for method in arguments.methods:
            for seed in range(arguments.seeds):
                folder = arguments.out.resolve() / task / method / str(seed)
                cell = _cell(folder, task, [*METHODS[method], *arguments.settings, f"seed={seed}"])
                print("| " + " | ".join([task, method, str(seed), *_row(cell)]) + " |", flush=True)


def _cell(folder: Path, task: str, settings: list[str]) -> dict[str, Any]:
    """Return what a cell measured; run or continue it where it is not finished."""
    measured, run = folder / "cell.json", folder / "run"
    if not measured.exists():
        config = ROOT / "configs" / "smollm2" / f"{task}.yaml"
        if (run / "journal.jsonl").exists():
            _germline("resume", run, "--quiet")
        else:
            kept = f"retained={json.dumps(RETAINED)}"
            _germline("train", config, *settings, kept, "--out", run, "--quiet")
        measured.write_text(json.dumps(_curve_and_cost(run) | _behavior(run)))
    read: dict[str, Any] = json.loads(measured.read_text())
    return read


def _curve_and_cost(run: Path) -> dict[str, Any]:
    """Return the held-out scores of a run by the rollouts before them, and what it cost."""
    directory = RunDirectory.open(run)
    rows = directory.generations()
    done = [0]
    for row in rows:
        done.append(done[-1] + row["rollouts"])
    scores = [row.score for row in directory.held_out()]
    return {
        "curve": [(done[one.generation], one.mean) for one in scores],
        "written": sum(row["tokens"] for row in rows),
        "scored": sum(row.get("tokens_scored", 0) for row in rows),
        "peak_mb": max(max(row["peak_memory_mb"].values()) for row in rows),
        "minutes": sum(row["timing"]["evaluate_s"] for row in rows) / 60,
    }


def _germline(*arguments: str | Path) -> str:
    """Run a command on one thread, and return what it printed."""
    command = [sys.executable, "-m", "germline", *map(str, arguments)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, check=True, env=one_thread, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    return run.stdout


def _behavior(run: Path) -> dict[str, Any]:
    """Return how far the model went, how its texts look, and what it forgot."""
    measured = json.loads(_germline("eval", run, "--kl", "--json"))[0]
    scores = [row.score.retained for row in RunDirectory.open(run).held_out()]
    facts, nats = ([one[name].mean for one in (scores[0], scores[-1])] for name in RETAINED)
    return {
        "kl": measured["kl"]["per_token"],
        "degenerate": measured["behavior"]["broken"],
        "facts": facts,
        "nats": nats,
    }


def _row(cell: dict[str, Any]) -> list[str]:
    """Return the numbers of a cell as text."""
    curve = [tuple(point) for point in cell["curve"]]
    scores = dict(curve)
    return [
        f"{curve[0][1]:.3f}",
        *(f"{scores[n]:.3f}" if n in scores else "-" for n in AFTER),
        f"{curve[-1][1]:.3f}",
        f"{curve[-1][0]:,}",
        f"{cell['minutes']:.1f}",
        f"{(cell['written'] + cell['scored']) / cell['minutes'] / 60:.0f}",
        f"{cell['peak_mb']:.0f}",
        f"{cell['kl']:.2f}",
        f"{cell['degenerate']:.2f}",
        " -> ".join(f"{share:.2f}" for share in cell["facts"]),
        " -> ".join(f"{nats:.2f}" for nats in cell["nats"]),
    ]


if __name__ == "__main__":
    main()
