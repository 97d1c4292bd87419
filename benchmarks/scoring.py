"""Members score completions, as in `zo_grpo`, beside a plain forward pass and the products alone.

    python -m benchmarks.scoring --model models/SmolLM2-135M-Instruct --dtype float32

16 members score 8 completions of 13 tokens of each of 2 prompts of 35 tokens, on one thread.
`plain` is the forward pass of transformers over whole rows, logits of prompts included. `floor` has
the matrix products of the tokens that members read: each prompt once, and logits only where they
predict a completion.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.field_way import linear_floor
from germline.config import load_config
from germline.engines.pretrained import load_pretrained
from germline.nano import NANO_DIR
from germline.run.build_parts import make_engine
from germline.strategies import make_strategy
from germline.types import Completion, Example

MEMBERS, PROMPTS, EACH, READ, WRITTEN = 16, 2, 8, 35, 13
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
    torch.set_num_threads(1)
    texts = torch.randint(9, 200, (PROMPTS, EACH, READ + WRITTEN))
    texts[:, :, :READ] = texts[:, :1, :READ]
    rows = texts.flatten(0, 1).tolist()
    examples = [Example(0, "", "", chat=True, token_ids=tuple(row[:READ])) for row in rows]
    written = [[Completion("", tuple(row[READ:]), "length", READ) for row in rows]] * MEMBERS
    settings = {"model": arguments.model, "strategy": {"population": MEMBERS, "sigma": 0.01}}
    engine_settings = ["engine.threads=1", f"engine.dtype={arguments.dtype}"]

    def scored(space: str) -> Callable[[], object]:
        config = load_config(settings, [*engine_settings, f"space={space}"])
        engine = make_engine(config)
        members = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
        return lambda: engine.log_probabilities(members, examples, written)

    variants = {space: scored(space) for space in arguments.spaces}
    pretrained = load_pretrained(str(NANO_DIR) if arguments.model == "nano" else arguments.model)
    model = pretrained.model.to(getattr(torch, arguments.dtype))
    ids = torch.tensor(rows)
    prompts = linear_floor(model, rows=MEMBERS * PROMPTS, prompt_tokens=READ, new_tokens=1)
    tokens = MEMBERS * len(rows) * (WRITTEN - 1)
    later = linear_floor(model, rows=tokens, prompt_tokens=1, new_tokens=1)
    variants["plain"] = lambda: [model(ids, use_cache=False) for _ in range(MEMBERS)]
    variants["floor"] = lambda: (prompts(), later())
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(arguments.repeats + 1):
        for name, variant in variants.items():
            began = time.process_time()
            variant()
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - began)
    floor = statistics.median(seconds["floor"])
    print(
        "| variant | CPU seconds | tokens scored per second | times the floor |\n|---|---|---|---|"
    )
    for name, every in seconds.items():
        taken = statistics.median(every)
        rate = MEMBERS * len(rows) * WRITTEN / taken
        print(f"| {name} | {taken:.2f} | {rate:,.0f} | {taken / floor:.2f} |")


if __name__ == "__main__":
    main()
