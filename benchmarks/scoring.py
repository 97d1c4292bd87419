"""Speed of scoring given completions, and of sampling several completions of a prompt, with nano.

    OMP_NUM_THREADS=1 python -m benchmarks.scoring --clock cpu

The center samples 8 completions of each of 2 prompts, and members score them. Variants of scoring:

- `engine`: `Engine.log_probabilities`, which reads each prompt once per member.
- `each row`: `Engine.read` on rows of prompt and completion, then log_softmax; as many members at
  once as have 4,096 tokens.
- `transformers`: a forward of the same rows with the unperturbed model, without log-probabilities.
- `floor`: `torch.mm` of all linear layers, the head included, at the tokens that must be read: each
  prompt once per member, and all tokens of the completions.

The variants take turns; ratios are medians of the ratios of neighbors in time. Sampling: the center
generates 8 samples of 32 prompts in one call, or 8 members generate one each.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from benchmarks.field_way import linear_floor
from germline.config import InProcess, Lora, LowRank, Nes, SpaceConfig, load_config
from germline.engines.completion_scorer import TOKENS_AT_ONCE
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.nano import NANO_DIR
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Completion, Decoding, Example, Perturbation

SPACES: Mapping[str, SpaceConfig] = {
    "low_rank, rank 1": LowRank(rank=1),
    "lora, rank 4": Lora(rank=4, init_scale_b=0.5),
}
PROMPTS, SAMPLES = 32, 8
DECODING = Decoding(max_new_tokens=16, temperature=1.0, noise_seed=1)
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
HEADING = """\
| space | members x rows | rows/s | tokens/s | time over floor | each row over engine | transformers over engine |
|---|---|---|---|---|---|---|"""  # noqa: E501 - a table


def scoring(
    engine: InProcessEngine,
    members: Sequence[Perturbation],
    examples: Sequence[Example],
    written: Sequence[Completion],
) -> tuple[int, dict[str, Callable[[], object]]]:
    """Return the number of tokens that must be read, and the variants of scoring."""
    distinct = {tuple(engine.encoder.encode(one)) for one in examples}
    tokens = sum(map(len, distinct)) + sum(len(one.tokens) for one in written)
    tokens *= len(members)
    packed = engine.pack_completions(examples, [written])
    together = max(1, TOKENS_AT_ONCE // packed.rows.numel())
    groups = [members[start : start + together] for start in range(0, len(members), together)]

    def each_row() -> None:
        for group in groups:
            for row in engine.read(group, examples, [written] * len(group)):
                for logits, one in zip(row, written, strict=True):
                    chosen = torch.tensor(one.tokens)[:, None]
                    logits.log_softmax(-1).gather(-1, chosen)[:, 0].tolist()

    @torch.inference_mode()
    def transformers() -> None:
        for group in groups:
            engine.model(packed.rows.repeat(len(group), 1), logits_to_keep=packed.keep)

    floor = partial(linear_floor, engine.model, prompt_tokens=1, new_tokens=1)
    return tokens, {
        "floor": floor(rows=tokens, microbatch_rows=TOKENS_AT_ONCE),
        "engine": lambda: engine.log_probabilities(members, examples, [written] * len(members)),
        "each row": each_row,
        "transformers": transformers,
    }


def measure(
    variants: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Run the variants in turn, and return the seconds of each; a first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name, run in variants.items():
            began = clock()
            run()
            if repeat:
                seconds[name].append(clock() - began)
    return seconds


def report(sizes: Sequence[int], repeats: int, clock: Callable[[], float]) -> Iterator[str]:
    """Measure, and yield the lines of the table and of sampling."""
    population = Nes(population=max(*sizes, SAMPLES), sigma=0.02)
    members = make_strategy(population, run_seed=3, generations=9).ask(0).members
    task = make_task(load_config({"model": "nano", "task": {"kind": "countdown"}}).task)
    prompts = task.examples("train")[:PROMPTS]
    samples = [replace(one, sample=sample) for one in prompts for sample in range(SAMPLES)]
    few = samples[: 2 * SAMPLES]
    yield HEADING
    lines = []
    for name, section in SPACES.items():
        model, space = load_pretrained(str(NANO_DIR)), make_space(section)
        engine = InProcessEngine(model, space, Sgd(), InProcess(device="cpu"))
        (written,) = engine.generate([None], few, DECODING)
        for count in sizes:
            tokens, variants = scoring(engine, members[:count], few, written)
            times = measure(variants, repeats, clock)
            pairs = (("engine", "floor"), ("each row", "engine"), ("transformers", "engine"))
            ratios = [
                median(above / below for above, below in zip(times[a], times[b], strict=True))
                for a, b in pairs
            ]
            speeds = (one / median(times["engine"]) for one in (count * len(few), tokens))
            cells = [f"{one:,.0f}" for one in speeds] + [f"{one:.2f}" for one in ratios]
            yield f"| {name} | {count} x {len(few)} | {' | '.join(cells)} |"
        calls = {
            "center": partial(engine.generate, [None], samples, DECODING),
            f"{SAMPLES} members": partial(engine.generate, members[:SAMPLES], prompts, DECODING),
        }
        shown = []
        for who, seconds in measure(calls, repeats, clock).items():
            written = [one for row in calls[who]() for one in row]
            tokens = sum(len(one.tokens) for one in written)
            shown.append(f"{who} {tokens / median(seconds):,.0f}")
        lines.append(f"\n{name}, sampled tokens/s, {PROMPTS} x {SAMPLES}: {', '.join(shown)}")
    yield "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", nargs="+", type=int, default=[16, 128])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    for line in report(arguments.members, arguments.repeats, CLOCKS[arguments.clock]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
