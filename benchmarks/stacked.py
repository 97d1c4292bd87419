"""Members of `full` that are evaluated in one batch, compared with one after another, on nano.

    python -m benchmarks.stacked                         # the table of docs/benchmarks.md
    python -m benchmarks.stacked --prompts 4 --stacked 4 8 16

Variants run in turn, several times, in one process; medians are compared. All evaluate the same
members, and every completion has all its new tokens. The time includes drawing the noise and
writing the weights.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.population import CLOCKS, NEW_TOKENS, SIGMA, NoGraders, Variant, engine_of, timed
from germline.config import MicrobatchSettings, load_config
from germline.engines.batched_dense import BatchedDenseMembers
from germline.engines.inprocess import InProcessEngine
from germline.rollout import evaluate_members
from germline.strategies import make_strategy
from germline.types import Decoding, Example, Perturbation


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Stacked members against one after another.")
    parser.add_argument("--prompts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--stacked", nargs="+", default=["1", "auto"], help="1 is compared with")
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    print(
        f"nano, space full, {arguments.members} members, {NEW_TOKENS} new tokens, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"medians of {arguments.repeats}, {arguments.clock} time\n"
    )
    print(
        "| prompts | engine.members_per_batch | together | seconds | tokens/s | one after "
        "another / it |"
    )
    print("|---|---|---|---|---|---|")
    together, variants = prepared(arguments.members, arguments.prompts, arguments.stacked)
    for prompts, of_prompts in variants.items():
        timings = timed(of_prompts, arguments.repeats, CLOCKS[arguments.clock])
        base = timings[arguments.stacked[0]].seconds
        for name, timing in timings.items():
            rate, gain = timing.tokens / timing.seconds, base / timing.seconds
            shown = f"{timing.seconds:.3f} | {rate:,.0f} | {gain:.2f}"
            print(f"| {prompts} | {name} | {together[name]} | {shown} |", flush=True)


def prepared(
    members: int, prompts: list[int], stacked: list[str]
) -> tuple[dict[str, int], dict[int, dict[str, Variant]]]:
    """Load an engine per setting; return its members per batch, and its work."""
    together: dict[str, int] = {}
    variants: dict[int, dict[str, Variant]] = {each: {} for each in prompts}
    for name in stacked:
        config = load_config(
            {
                "engine": {"members_per_batch": name if name == "auto" else int(name)},
                "strategy": {"population": members, "sigma": SIGMA},
            }
        )
        engine = engine_of(config, "full", endless=True)
        dense = engine._members
        together[name] = dense.together if isinstance(dense, BatchedDenseMembers) else 1
        who = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
        for each in prompts:
            texts = [f"What is {i % 20} + {i // 20}?" for i in range(each)]
            examples = [Example(i, text, "", chat=True) for i, text in enumerate(texts)]
            variants[each][name] = partial(written, engine, who, examples, config.microbatch)
    return together, variants


def written(
    engine: InProcessEngine,
    members: Sequence[Perturbation],
    examples: list[Example],
    microbatch: MicrobatchSettings,
) -> int:
    """Evaluate the members, and count the new tokens."""
    return evaluate_members(
        engine, NoGraders(), members, examples, microbatch, Decoding(NEW_TOKENS)
    ).tokens


if __name__ == "__main__":
    main()
