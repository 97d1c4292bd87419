"""Intrinsic dimension of two nano tasks: shipped configs, and random subspaces of their layers.

    python -m benchmarks.intrinsic_dimension                     # the table of docs/benchmarks.md
    python -m benchmarks.intrinsic_dimension --tasks arithmetic --seeds 0 1 --cma-up-to 16

Runs `germline study intrinsic-dimension` for every task and prints rows for the docs. Runs are kept
in `--out`: the same command continues an interrupted benchmark.
"""

import argparse
from pathlib import Path

import torch

from germline import load_config
from germline.studies.intrinsic_dimension import (
    IntrinsicDimension,
    draw_share_kept,
    find_intrinsic_dimension,
    run_dimensions,
)

HELD_OUT = {"conciseness": 50, "arithmetic": 188}
"""Held-out examples per score: all of them."""


def main() -> None:
    """Print a table per task."""
    parser = argparse.ArgumentParser(description="Find the intrinsic dimension of nano tasks.")
    parser.add_argument("--tasks", nargs="+", default=list(HELD_OUT))
    parser.add_argument("--dimensions", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cma-up-to", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    print(f"nano, {torch.get_num_threads()} threads, torch {torch.__version__}, ", end="")
    print(f"run seeds {' '.join(map(str, arguments.seeds))}\n")
    print("| task | dimension | metric | before | after | improvement kept |")
    print("|---|---|---|---|---|---|")
    smallest = []
    for task in arguments.tasks:
        file = Path("configs") / f"{task}.yaml"
        config = load_config(file, [f"held_out.examples={HELD_OUT[task]}"])
        folder = arguments.out / f"intrinsic-dimension-{task}"
        chosen = (arguments.dimensions, arguments.seeds, folder, arguments.cma_up_to)
        found = find_intrinsic_dimension(config, list(run_dimensions(config, *chosen)))
        print_rows(task, found)
        draw_share_kept(found, f"{task}, nano", folder / "intrinsic-dimension.png")
        enough = found.smallest or f"more than {found.dimensions[-1]}"
        smallest.append(f"{task}: {enough}")
    print(f"\nsmallest dimension that keeps 90 % of the improvement: {', '.join(smallest)}")


def print_rows(task: str, found: IntrinsicDimension) -> None:
    """Print the row of the unchanged config, and then of every dimension."""
    before = found.outcomes[0].start
    for dimension in (None, *found.dimensions):
        name = "as it is" if dimension is None else str(dimension)
        kept = 1.0 if dimension is None else found.kept(dimension)
        print(
            f"| {task} | {name} | {before.metric} | {before.mean:.3g} | "
            f"{found.end(dimension):.3g} | {100 * kept:.0f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
