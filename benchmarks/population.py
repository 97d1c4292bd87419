"""Evaluate a population: all members in one batch, compared with one member after another.

    python -m benchmarks.population                # the table of docs/results.md
    python -m benchmarks.population --prompts 2 32 --repeats 5
    python -m benchmarks.population --members 128 --prompts 32 --variants plain low_rank floor

Variants run in turn, several times, in one process; medians are compared. Completions have the full
number of new tokens, so all variants do the same work; in the last row of a block the model may end
them, as in training.

- field: perturb in place, Hugging Face `generate`, restore (`benchmarks/field_way.py`).
- plain: this project's engine on the same rows without perturbations.
- low_rank: this project's engine, the population of a generation, rank 1.
- lora: the same with adapters of rank 1 on the same layers.
- floor: the matrix products alone, for the same rows and tokens; the common beginning of all
  prompts is computed once per member, as in the engine.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from benchmarks.field_way import evaluate_one_at_a_time, linear_floor
from benchmarks.published_shapes import prompts as questions
from germline import train
from germline.config import Config, InProcess, load_config
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.nano import NANO_DIR
from germline.optimizers import Sgd
from germline.rollout import evaluate_members, members_per_microbatch
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.types import Decoding, Example, Grade, Perturbation

VARIANTS = ("field", "plain", "low_rank", "lora", "floor")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NEW_TOKENS = 16
SIGMA = 0.001


Variant = Callable[[], int]
"""Evaluates once and returns the number of new tokens."""


@dataclass(frozen=True)
class Timing:
    """Median seconds of a variant, and its number of new tokens."""

    seconds: float
    tokens: int


class NoGraders:
    """Gives every completion the same reward, as grading is not timed."""

    max_turns: int | None = None

    def submit(self, texts: Sequence[object], examples: Sequence[Example]) -> Future[list[Grade]]:
        """Return at once."""
        done: Future[list[Grade]] = Future()
        done.set_result([Grade(0.0, {}) for _ in texts])
        return done


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Population evaluation and the usual loop.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--prompts", type=int, nargs="+", default=[2, 32, 200])
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: CPU seconds of all threads, which vary less on a shared machine",
    )
    arguments = parser.parse_args()
    config = load_config(
        {"model": arguments.model, "strategy": {"population": arguments.members, "sigma": SIGMA}}
    )
    print(
        f"{arguments.model}, {arguments.members} members, {NEW_TOKENS} new tokens, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"medians of {arguments.repeats}, {arguments.clock} time\n"
    )
    print("| prompts | end | variant | seconds | tokens/s | field / it | plain / it | floor / it |")
    print("|---|---|---|---|---|---|---|---|")
    for prompts in arguments.prompts:
        for endless in (True, False):
            variants = prepared(config, prompts, arguments.variants, endless=endless)
            timings = timed(variants, arguments.repeats, CLOCKS[arguments.clock])
            print_rows(prompts, timings, "all 16" if endless else "by themselves")
    if set(arguments.variants) != set(VARIANTS):
        return
    print("\n| task | generations | generation, s | outside generation |")
    print("|---|---|---|---|")
    for task in ("arithmetic", "conciseness", "countdown"):
        print(share_outside(task))


def prepared(
    config: Config, prompts: int, wanted: Sequence[str], *, endless: bool
) -> dict[str, Variant]:
    """Return the wanted variants; each evaluates `prompts` prompts per member once."""
    engine = engine_of(config, "low_rank", endless=endless)
    adapters = engine_of(config, "lora", endless=endless)
    examples = questions(prompts)
    members = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
    population = len(members)
    tokenizer = engine.pretrained.tokenizer
    ids = [encode_prompt(tokenizer, example) for example in examples]
    in_batch = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")

    def field() -> int:
        model = engine.pretrained.model
        answers = evaluate_one_at_a_time(model, in_batch, range(population), SIGMA, NEW_TOKENS)
        return sum(
            _written(row, engine.encoder.end_ids) for answer in answers for row in answer.tolist()
        )

    def ours(on: InProcessEngine, who: Sequence[Perturbation | None]) -> int:
        return evaluate_members(
            on, NoGraders(), who, examples, config.microbatch, Decoding(NEW_TOKENS)
        ).tokens

    rows = members_per_microbatch(config.microbatch, prompts) * min(
        config.microbatch.examples, prompts
    )
    products = linear_floor(
        engine.pretrained.model,
        rows=population * prompts,
        prompt_tokens=max(len(one) for one in ids),
        new_tokens=NEW_TOKENS,
        microbatch_rows=rows,
        shared=(len(pad_prompts(ids, 0).prefix), min(config.microbatch.examples, prompts)),
    )

    def floor() -> int:
        products()
        return population * prompts * NEW_TOKENS

    variants: dict[str, Variant] = {
        "field": field,
        "plain": lambda: ours(engine, [None] * population),
        "low_rank": lambda: ours(engine, members),
        "lora": lambda: ours(adapters, members),
    }
    if endless:
        variants["floor"] = floor
    return {name: variant for name, variant in variants.items() if name in wanted}


def timed(
    variants: dict[str, Variant], repeats: int, clock: Callable[[], float]
) -> dict[str, Timing]:
    """Time all variants in turn, several times; return medians."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    tokens = {name: variant() for name, variant in variants.items()}  # also warms up
    for _ in range(repeats):
        for name, variant in variants.items():
            began = clock()
            variant()
            seconds[name].append(clock() - began)
    return {name: Timing(statistics.median(seconds[name]), tokens[name]) for name in variants}


def engine_of(config: Config, space: str, *, endless: bool) -> InProcessEngine:
    """Load the model; with `endless` it has no end token, so variants do the same work."""
    searched = load_config({"space": space}).space
    source = str(NANO_DIR) if config.model == "nano" else config.model
    pretrained = load_pretrained(source)
    if endless:
        pretrained.model.generation_config.eos_token_id = None
        pretrained.model.config.eos_token_id = None
        pretrained.tokenizer.eos_token = None
    pretrained.model.generation_config.pad_token_id = pretrained.tokenizer.pad_token_id or 0
    assert isinstance(config.engine, InProcess)
    return InProcessEngine(pretrained, make_space(searched), Sgd(), config.engine)


def print_rows(prompts: int, timings: dict[str, Timing], end: str) -> None:
    """Print one row per variant."""
    for name, timing in timings.items():
        rate = timing.tokens / timing.seconds
        ratios = [
            f"{timings[other].seconds / timing.seconds:.2f}" if other in timings else ""
            for other in ("field", "plain", "floor")
        ]
        cells = (str(prompts), end, name, f"{timing.seconds:.3f}", f"{rate:,.0f}", *ratios)
        print("|", " | ".join(cells), "|")


def share_outside(task: str) -> str:
    """Train with a shipped config; return a row with the share of time not spent generating."""
    config = load_config(f"configs/{task}.yaml", ["generations=6"])
    walls, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        for record in train(config, f"{folder}/run"):
            wall = time.perf_counter() - began
            walls.append(wall)
            shares.append(1 - record.timing["generate_s"] / wall)
            began = time.perf_counter()
    # The first generation also contains the held-out score of the start.
    wall, share = statistics.median(walls[1:]), statistics.median(shares[1:])
    return f"| {task} | {len(walls) - 1} | {wall:.2f} | {share:.1%} |"


def _written(row: Sequence[int], ends: frozenset[int]) -> int:
    """Count a row's tokens up to the first end token."""
    return next((place for place, token in enumerate(row, 1) if token in ends), len(row))


if __name__ == "__main__":
    main()
