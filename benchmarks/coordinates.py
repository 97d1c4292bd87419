"""Speed and memory of members with vector perturbations, compared with a batch of the center.

    python -m benchmarks.coordinates
    OMP_NUM_THREADS=1 python -m benchmarks.coordinates --clock cpu   # beside other work

The nano model generates the same rows for 32 members of each space and for its center. Variants
take turns in one process, and medians are compared. `directions` are the factors that a space holds
for all members together, in the serving dtype; each member adds only its coordinates.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from germline.config import InProcess, SpaceConfig, load_config
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.nano import NANO_DIR
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.spaces.coordinates import CoordinateSpace
from germline.strategies import make_strategy
from germline.types import Decoding, Example, Perturbation

SPACES = {
    "low_rank, rank 1": "low_rank",
    "subspace, dimension 16": "{kind: subspace, dimension: 16}",
    "subspace, dimension 64": "{kind: subspace, dimension: 64}",
    "subspace, dimension 256": "{kind: subspace, dimension: 256}",
    "singular, top_k 16": "{kind: singular, top_k: 16}",
}
MEMBERS, NEW_TOKENS = 32, 16
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""Wall seconds, or CPU seconds of all threads, which vary less on a shared machine."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time spaces of coordinates.")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    config = load_config({"strategy": {"population": MEMBERS, "sigma": 0.001}})
    members: Sequence[Perturbation | None] = (
        make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
    )
    examples = [
        Example(i, f"What is {i % 20} + {i // 20}?", "", chat=True)
        for i in range(arguments.prompts)
    ]
    engines = {
        name: _engine(load_config({}, [f"space={space}"]).space) for name, space in SPACES.items()
    }
    plain = engines["low_rank, rank 1"]
    center: Sequence[Perturbation | None] = [None] * MEMBERS
    variants = {"plain": (plain, center)}
    variants |= {name: (engine, members) for name, engine in engines.items()}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    clock = CLOCKS[arguments.clock]
    for repeat in range(arguments.repeats + 1):
        for name, (engine, who) in variants.items():
            began = clock()
            engine.generate(who, examples, Decoding(NEW_TOKENS))
            if repeat:  # the first one warms up
                seconds[name].append(clock() - began)
    print(
        f"nano, {MEMBERS} members x {arguments.prompts} prompts, {NEW_TOKENS} new tokens, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"medians of {arguments.repeats}, {arguments.clock} clock\n"
    )
    print("| variant | seconds | plain / it | searched numbers | directions, MB |")
    print("|---|---|---|---|---|")
    base = statistics.median(seconds["plain"])
    for name, (engine, _) in variants.items():
        median = statistics.median(seconds[name])
        searched = "" if name == "plain" else f"{engine.weights.dimension:,}"
        print(
            f"| {name} | {median:.3f} | {base / median:.2f} | {searched} | {_directions(engine)} |"
        )


def _engine(space: SpaceConfig) -> InProcessEngine:
    """Load the model without an end token, so that all variants do the same work."""
    pretrained = load_pretrained(str(NANO_DIR))
    pretrained.model.generation_config.eos_token_id = None
    pretrained.model.config.eos_token_id = None
    pretrained.tokenizer.eos_token = None
    return InProcessEngine(pretrained, make_space(space), Sgd(), InProcess(device="cpu"))


def _directions(engine: InProcessEngine) -> str:
    space = engine.weights.space
    if not isinstance(space, CoordinateSpace):
        return ""
    parts = [space.directions(matrix) for matrix in space.matrices]
    return f"{sum(4 * (part.a.numel() + part.b.numel()) for part in parts) / 1e6:.2f}"


if __name__ == "__main__":
    main()
