"""Compare methods on the same task, seeds and number of rollouts.

    python -m benchmarks.methods --seeds 3
    python -m benchmarks.methods --seeds 1 --methods es "randopt, 256 members vote"

Every method evaluates 32 members x 32 examples of `arithmetic` per generation (RandOpt has the same
number of rollouts in one generation) and updates, or perturbs, the last block of the nano model.
Scores are greedy on all held-out examples, also for methods that sample in training. The last rows
search prompt and temperature with the weights, and begin with the worse option of both.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import germline
from germline.config import load_config

CONFIGS = Path(__file__).parents[1] / "configs"
GENERATIONS = 8

METHODS = {
    "es": ("arithmetic", []),
    "randopt, 256 members vote": (
        "randopt",
        ["generations=1", "batch_size=32", "strategy.population=256"],
    ),
    "es_sample_gd, weights explore": ("es_sample_gd", []),
    "es_sample_gd, weights, advantage of members": ("es_sample_gd", ["method.advantage=member"]),
    "es_sample_gd, temperature explores": (
        "es_sample_gd",
        ["method.exploration=temperature", "task.temperature=1", "strategy.sigma=auto"],
    ),
    "es with prompt search, 30 generations": ("prompt_search", ["generations=30"]),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare methods on short sums.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments = parser.parse_args()
    print("| method | rollouts | right after, mean (worst seed) | training, s |")
    print("|---|---|---|---|")
    for name in arguments.methods:
        shipped, overrides = METHODS[name]
        found = [_trained(shipped, [*overrides, f"seed={seed}"]) for seed in range(arguments.seeds)]
        scores, seconds, rollouts = zip(*found, strict=True)
        print(
            f"| {name} | {rollouts[0]:,} | {statistics.mean(scores):.1%} ({min(scores):.1%}) "
            f"| {statistics.mean(seconds):.0f} |",
            flush=True,
        )


def _trained(shipped: str, overrides: list[str]) -> tuple[float, float, int]:
    """Train, and return the greedy held-out score, the seconds and the rollouts of training."""
    generations = (
        []
        if any("generations" in override for override in overrides)
        else [f"generations={GENERATIONS}"]
    )
    small = [*generations, "held_out.every=1000", "held_out.examples=4", "record.tensorboard=false"]
    config = load_config(CONFIGS / f"{shipped}.yaml", [*small, *overrides])
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        training = germline.train(config, Path(folder) / "run")
        rollouts = sum(len(record.evaluation.rollouts) for record in training)
        seconds = time.perf_counter() - began
        task = config.task.model_copy(update={"temperature": 0.0})
        score, _ = germline.evaluate(str(training.directory.path), task)
    return score.mean, seconds, rollouts


if __name__ == "__main__":
    main()
