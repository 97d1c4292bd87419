"""Score against rollouts: members that generate (`es`), and members that score (`zo_grpo`).

    python -m benchmarks.rollouts --out /tmp/rollouts --seeds 5
    python -m benchmarks.rollouts --out /tmp/rollouts --tasks arithmetic --seeds 2
    python -m benchmarks.rollouts --out /tmp/64x32 --methods zo_grpo --settings \
        strategy.population=64 method.rows_per_member=32

A cell is a run of a shipped config, TASK_METHOD.yaml or TASK.yaml, in a process of its own, on one
thread, in OUT/TASK/METHOD/SEED; a finished cell is read and not run again. Held-out scores are
greedy. CPU seconds and peak memory are of the whole process, held-out scores included. GRPO is not
run here: its figures in docs/results.md are from TRL 1.16.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from germline.record import RunDirectory

CONFIGS = Path(__file__).parents[1] / "configs"

METHODS: dict[str, list[str]] = {
    "es": ["held_out.every=5"],
    "zo_grpo": ["method.kind=zo_grpo", "batch_size=32", "generations=24", "held_out.every=1"],
}

TASKS: dict[str, tuple[float, list[str]]] = {
    "arithmetic": (0.95, ["held_out.examples=188"]),
    "countdown": (0.84, ["held_out.examples=2000", "held_out.every=2"]),
    "conciseness": (2.0, ["held_out.examples=100"]),
    "multiplication": (5 / 14, ["held_out.examples=14"]),
}
"""The score to reach, and settings of the task."""


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    print(
        "| task | method | seeds | before | rollouts to target | after 512 | after 1,024 |", end=""
    )
    print(" after 2,560 | end | best | rollouts | tokens written, scored | CPU s | peak MB |")
    print("|---" * 14 + "|")
    for task in arguments.tasks:
        for method in arguments.methods:
            cells = [
                _cell(
                    arguments.out / task / method / str(seed),
                    task,
                    method,
                    [*METHODS[method], *TASKS[task][1], *arguments.settings, f"seed={seed}"],
                )
                for seed in range(arguments.seeds)
            ]
            print(_row(task, method, cells), flush=True)


def _cell(folder: Path, task: str, method: str, settings: list[str]) -> dict[str, Any]:
    """Return what a cell measured; run it where it was not run."""
    measured = folder / "cell.json"
    if not measured.exists():
        names = (f"{task}_{method}.yaml", f"{task}.yaml")
        config = next(CONFIGS / name for name in names if (CONFIGS / name).exists())
        command = [sys.executable, "-m", "germline", "train", str(config)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*command, *settings, "engine.threads=1", "--out", str(folder / "run"), "--quiet"],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cell = curve_and_cost(folder / "run")
        cell["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        measured.write_text(json.dumps(cell))
    read: dict[str, Any] = json.loads(measured.read_text())
    return read


def curve_and_cost(run: Path) -> dict[str, Any]:
    """Return the held-out scores of a run by the rollouts before them, and what it cost."""
    directory = RunDirectory.open(run)
    rows = directory.generations()
    done = [0]
    for row in rows:
        done.append(done[-1] + row["rollouts"])
    scores = [row.score for row in directory.held_out()]
    return {
        "curve": [(done[one.generation], one.mean) for one in scores],
        "higher": scores[0].higher_is_better,
        "written": sum(row["tokens"] for row in rows),
        "scored": sum(row.get("tokens_scored", 0) for row in rows),
        "peak_mb": max(max(row["peak_memory_mb"].values()) for row in rows),
        "minutes": sum(row["timing"]["evaluate_s"] for row in rows) / 60,
    }


def _row(task: str, method: str, cells: list[dict[str, Any]]) -> str:
    """Return the line of a task and a method: means over seeds, the worst seed in brackets."""
    worst = min if cells[0]["higher"] else max
    best = max if cells[0]["higher"] else min
    target = TASKS[task][0]

    def shown(values: list[float]) -> str:
        if any(math.isnan(value) for value in values):
            return "-"
        return f"{statistics.mean(values):.3f} ({worst(values):.3f})"

    def after(rollouts: int) -> str:
        return shown([_score_after(cell["curve"], rollouts) for cell in cells])

    reached = [_reached(cell, target) for cell in cells]
    known = [f"{one:,}" if one is not None else "never" for one in reached]
    return " | ".join(
        [
            f"| {task} | {method} | {len(cells)}",
            shown([cell["curve"][0][1] for cell in cells]),
            ", ".join(known),
            *(after(rollouts) for rollouts in (512, 1024, 2560)),
            shown([cell["curve"][-1][1] for cell in cells]),
            shown([best(score for _, score in cell["curve"]) for cell in cells]),
            f"{cells[0]['curve'][-1][0]:,}",
            ", ".join(
                f"{statistics.mean(c[k] for c in cells):,.0f}" for k in ("written", "scored")
            ),
            f"{statistics.median(cell['cpu_s'] for cell in cells):.0f}",
            f"{statistics.median(cell['peak_mb'] for cell in cells):.0f} |",
        ]
    )


def _score_after(curve: list[list[float]], rollouts: int) -> float:
    """Return the score after so many rollouts; NaN where the run was not scored there."""
    return next((score for done, score in curve if done == rollouts), math.nan)


def _reached(cell: dict[str, Any], target: float) -> int | None:
    """Return the rollouts before the first score that reaches the target; None: never."""
    sign = 1 if cell["higher"] else -1
    return next((int(done) for done, score in cell["curve"] if sign * score >= sign * target), None)


if __name__ == "__main__":
    main()
