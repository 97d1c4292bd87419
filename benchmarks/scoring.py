"""Members score completions, as in `zo_grpo`, beside a plain forward pass and the products alone.

    python -m benchmarks.scoring --model models/SmolLM2-135M-Instruct --dtype float32

16 members score 8 completions of 13 tokens of each of 2 prompts of 35 tokens, on one thread.
`plain` is the forward pass of transformers over whole rows, logits of prompts included. `floor` has
the matrix products of the tokens that members read: each prompt once, and logits only where they
predict a completion.
"""

import argparse

import torch

from benchmarks.field_way import linear_floor
from benchmarks.population import CLOCKS, Variant, timed
from germline.config import load_config
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.run.build_parts import make_engine
from germline.strategies import make_strategy
from germline.types import Completion, Example

MEMBERS, PROMPTS, EACH, READ, WRITTEN = 16, 2, 8, 35, 13
ROWS = MEMBERS * PROMPTS * EACH
SPACES = ("low_rank", "{kind: lora, rank: 4}")


@torch.inference_mode()
def main() -> None:
    """Time all variants in turn, and print the medians of processor seconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="nano")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--spaces", nargs="+", default=SPACES)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    texts = torch.randint(9, 200, (PROMPTS, EACH, READ + WRITTEN))
    texts[:, :, :READ] = texts[:, :1, :READ]
    ids = texts.flatten(0, 1)
    rows = ids.tolist()
    examples = [Example(0, "", "", chat=True, token_ids=tuple(row[:READ])) for row in rows]
    written = [[Completion("", tuple(row[READ:]), "length", READ) for row in rows]] * MEMBERS
    settings = {"model": arguments.model, "strategy": {"population": MEMBERS, "sigma": 0.01}}
    overrides = ["engine.threads=1", f"engine.dtype={arguments.dtype}"]

    def members(space: str) -> Variant:
        config = load_config(settings, [*overrides, f"space={space}"])
        engine = make_engine(config)
        asked = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members

        def score() -> int:
            engine.log_probabilities(asked, examples, written)
            return ROWS * WRITTEN

        return score

    engine = make_engine(load_config(settings, overrides), searched=False)
    assert isinstance(engine, InProcessEngine)
    # An engine replaces the attention of its own copy.
    model = load_pretrained(engine.pretrained.source).model.to(engine.model.dtype)
    prompts = linear_floor(model, rows=MEMBERS * PROMPTS, prompt_tokens=READ, new_tokens=1)
    later = linear_floor(model, rows=ROWS * (WRITTEN - 1), prompt_tokens=1, new_tokens=1)

    def plain() -> int:
        for _ in range(MEMBERS):
            model(ids, use_cache=False)
        return ROWS * WRITTEN

    def floor() -> int:
        prompts()
        later()
        return ROWS * WRITTEN

    variants = {space: members(space) for space in arguments.spaces}
    timings = timed(variants | {"plain": plain, "floor": floor}, arguments.repeats, CLOCKS["cpu"])
    print("| variant | CPU seconds | scored tokens per second | times the floor |")
    print("|---|---|---|---|")
    for name, timing in timings.items():
        rate, ratio = timing.tokens / timing.seconds, timing.seconds / timings["floor"].seconds
        print(f"| {name} | {timing.seconds:.2f} | {rate:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
