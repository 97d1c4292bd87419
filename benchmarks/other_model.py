"""Do the defaults carry over to another model? One of 22 million random weights, in every space.

    python -m benchmarks.other_model                        # low_rank, lora, full, subspace
    python -m benchmarks.other_model --spaces lora --seeds 0 1 --set strategy.population=64

The model (`benchmarks.shapes`) knows nothing, and learns to write one letter (`letters.py`). Every
run uses the default sigma, learning rate and space: nothing is set but the size of the work.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.shapes import BENCH, random_model
from germline import load_config, train
from germline.types import Update

SPACES = ("low_rank", "lora", "full", "subspace")


def model() -> str:
    """Write the model once, the same each time, and return its folder."""
    folder = Path(tempfile.gettempdir()) / "germline-22M"
    if not folder.exists():
        drawn = np.random.default_rng(0)
        pretrained = random_model(BENCH["22M"], torch.device("cpu"))
        for parameter in pretrained.model.parameters():
            if parameter.dim() > 1:  # norms stay 1, biases 0
                noise = drawn.normal(scale=0.02, size=tuple(parameter.shape))
                parameter.data.copy_(torch.from_numpy(noise))
        made = folder.with_name(f"{folder.name}-{os.getpid()}")
        pretrained.model.save_pretrained(made)
        pretrained.tokenizer.save_pretrained(made)
        made.rename(folder)
    return str(folder)


def run(space: str, seed: int, settings: Sequence[str]) -> tuple[list[float], list[float], float]:
    """Train, and return held-out scores, the steps in sigmas, and sigma."""
    config = load_config(
        {"model": model(), "task": str(Path(__file__).parent / "letters.py")},
        [
            f"space={space}",
            f"seed={seed}",
            "strategy.population=32",
            "batch=4",
            "generations=30",
            "cell.rows=128",
            "held_out={every: 10, examples: 16}",
            "record={rollouts: 0, tensorboard: false, figure_every: 100000, "
            "snapshot_every: 100000}",
            *settings,
        ],
    )
    steps, sigma = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        training = train(config, Path(folder) / "run")
        for record in training:
            assert isinstance(record.update, Update)
            sigma = record.update.sigma
            length = float(np.linalg.norm(record.update.coefficients))
            steps.append(record.update.learning_rate * length / sigma)
        scores = [one.score.mean for one in training.directory.held_out()]
    return scores, steps, sigma


def rows(spaces: Sequence[str], seeds: Sequence[int], settings: Sequence[str]) -> Iterator[str]:
    """Return a table row per run, as soon as it is done."""
    yield "| space | seed | sigma | held-out score, every ten generations | mean step | seconds |"
    yield "|---|---|---|---|---|---|"
    for seed in seeds:
        for space in spaces:
            began = time.perf_counter()
            scores, steps, sigma = run(space, seed, settings)
            shown = ", ".join(f"{score:.3f}" for score in scores)
            seconds = time.perf_counter() - began
            columns = (f"`{space}`", f"{seed}", f"{sigma:.3g}", shown, f"{np.mean(steps):.2g}")
            yield f"| {' | '.join(columns)} | {seconds:.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spaces", nargs="+", default=list(SPACES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    for row in rows(arguments.spaces, arguments.seeds, arguments.set):
        print(row, flush=True)


if __name__ == "__main__":
    main()
