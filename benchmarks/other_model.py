"""Training with the default settings on another model, of 22 million weights, in every space.

    python -m benchmarks.other_model                        # low_rank, lora, full, subspace
    python -m benchmarks.other_model --spaces lora --seeds 0 1 --set strategy.population=64

The model has the 22M shape of `benchmarks.shapes` and random weights; a minute of backpropagation
on random words trains it to generate a dozen words. ES then trains it to generate vowels
(`letters.py`). Every run uses the default sigma, learning rate and space; only the population,
batch and number of generations are set.
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
from germline.engines.pretrained import PretrainedModel
from germline.types import Update

SPACES = ("low_rank", "lora", "full", "subspace")


WORDS = "sky fly try dry my queue adieu area idea eerie sing strength"
"""Words that the model generates before training; half of them have at most one vowel."""


def model() -> str:
    """Make the model once, always with the same weights, and return its folder."""
    folder = Path(tempfile.gettempdir()) / "germline-22M-words"
    if not folder.exists():
        drawn = np.random.default_rng(0)
        pretrained = random_model(BENCH["22M"], torch.device("cpu"))
        for parameter in pretrained.model.parameters():
            if parameter.dim() > 1:  # norms remain 1, biases 0
                noise = drawn.normal(scale=0.02, size=tuple(parameter.shape))
                parameter.data.copy_(torch.from_numpy(noise))
        learn_words(pretrained)
        made = folder.with_name(f"{folder.name}-{os.getpid()}")
        pretrained.model.save_pretrained(made)
        pretrained.tokenizer.save_pretrained(made)
        made.rename(folder)
    return str(folder)


def learn_words(pretrained: PretrainedModel, steps: int = 40) -> None:
    """Train with AdamW on random words, until the model generates only these."""
    chosen, words = np.random.default_rng(1), WORDS.split()
    network = pretrained.model.train().requires_grad_(requires_grad=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(steps):
        texts = [" ".join(chosen.choice(words, 12)) for _ in range(16)]
        rows = [pretrained.tokenizer(text).input_ids[:24] for text in texts]
        short = min(map(len, rows))
        tokens = torch.tensor([row[:short] for row in rows])
        loss = network(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"words were learned to {loss.item():.2f} nats per token", flush=True)
    network.eval().requires_grad_(requires_grad=False)


def run(space: str, seed: int, settings: Sequence[str]) -> tuple[list[float], list[float], float]:
    """Train, and return held-out scores, the steps in sigmas, and sigma."""
    config = load_config(
        {"model": model(), "task": str(Path(__file__).parent / "letters.py")},
        [
            f"space={space}",
            f"seed={seed}",
            "strategy.population=32",
            "batch_size=8",
            "generations=18",
            "microbatch.rows=128",
            "held_out={every: 6, examples: 40}",
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
    """Yield a table row per run when it is finished."""
    yield "| space | seed | sigma | held-out score, every six generations | mean step | seconds |"
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
