"""Evaluate populations of large models on a GPU: speed, memory, share of the bandwidth.

    python -m benchmarks.gpu_population                        # on a GPU: the table
    python -m benchmarks.gpu_population --shapes 0.5B --populations 8 64 --cuda-graphs
    python -m benchmarks.gpu_population --shapes toy           # anywhere, in seconds

Models have random weights in the shapes of Qwen2.5, and every completion has all its new tokens.
Without a GPU the toy shape runs instead, and the table lists the unmeasured shapes.

- population: this project's engine, `low_rank` of rank 1, in microbatches of `--rows` rows.
- plain: the same rows without perturbations.
- one at a time: add a member's noise to the weights in place, Hugging Face `generate`, subtract it
  (`benchmarks/field_way.py`); the rate is that of a few members.
- full: this project's engine in space `full`, masters on the host; also a few members.

`peak` is the peak device memory of the variant alone, including weights (on a CPU: bytes of
tensors, counted per operation). Reading the weights once per step and the keys and values once per
token would take some time at the speed of a copy on this device, measured in the same run;
`bandwidth` is the share of this time in the time of the variant. `update` is the time of one
`apply` of the population, in seconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.field_way import evaluate_one_at_a_time
from benchmarks.memory import LiveTensors
from benchmarks.population import NoGraders
from benchmarks.shapes import QWEN, TOY, Shape, prompts, random_model
from germline.config import Full, InProcess, LowRank, MicrobatchSettings, load_config
from germline.engines.inprocess import InProcessEngine
from germline.engines.prompt_batch import encode_prompt
from germline.optimizers import Sgd
from germline.rollout import evaluate_members, members_per_microbatch
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.types import Decoding, GermlineError, Perturbation, Update

SHAPES = {**QWEN, "toy": TOY}
SIGMA = 1e-3
FEW = 4
"""Members of the variants that evaluate one by one: their rate does not depend on the number."""


@dataclass(frozen=True)
class Work:
    """The work of all variants: prompts per member, new tokens, rows of a microbatch, graphs."""

    prompts: int
    new_tokens: int
    rows: int
    cuda_graphs: bool = False


@dataclass(frozen=True)
class Result:
    """Tokens per second, and the peak in bytes."""

    rate: float
    peak: int


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Populations of large models on one device.")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.5B", "1.5B", "7B"])
    parser.add_argument("--populations", type=int, nargs="+", default=[8, 64, 512, 1024])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prompts", type=int, default=2, help="per member")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1024, help="rows per microbatch")
    parser.add_argument("--cuda-graphs", action="store_true", help="`engine.cuda_graphs`")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    work = Work(arguments.prompts, arguments.new_tokens, arguments.rows, arguments.cuda_graphs)
    for line in report(arguments.shapes, arguments.populations, device, work, arguments.repeats):
        print(line, flush=True)


def report(
    shapes: Sequence[str],
    populations: Sequence[int],
    device: torch.device,
    work: Work,
    repeats: int,
) -> Iterator[str]:
    """Yield the lines of the table, shape after shape."""
    on_gpu = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if on_gpu else "CPU"
    speed = copy_speed(device)
    yield (
        f"{where}, torch {torch.__version__}, copies at {speed / 1e9:,.0f} GB/s; {work.prompts} "
        f"prompts per member, {work.new_tokens} new tokens, CUDA graphs {work.cuda_graphs}, "
        f"medians of {repeats}\n"
    )
    yield (
        "| shape | members | population, tokens/s | plain | one at a time | population / plain "
        "| population / one at a time | bandwidth | peak: population, GB | plain | full | update |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for name in shapes if on_gpu else ["toy"]:
        for members in populations if on_gpu else populations[:2]:
            try:
                yield row(SHAPES[name], members, device, work, repeats, speed)
            except (torch.OutOfMemoryError, GermlineError) as error:
                yield f"| {name} | {members} | {str(error).splitlines()[0]} | {'| ' * 9}|"
    if not on_gpu:
        missing = ", ".join(name for name in shapes if name != "toy") or "the shapes of Qwen2.5"
        yield (
            f"\nNot measured, as there is no GPU: {missing}. The rows above show that the script "
            "works; their figures do not apply to a GPU."
        )


def row(
    shape: Shape, members: int, device: torch.device, work: Work, repeats: int, speed: float
) -> str:
    """Measure one shape and population; return its line."""
    engine = engine_of(shape, device, LowRank(rank=1), cuda_graphs=work.cuda_graphs)
    config = load_config({"strategy": {"population": members, "sigma": SIGMA}})
    who = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
    size = MicrobatchSettings(rows=work.rows)
    population = measured(partial(ours, engine, who, work, size), device, repeats)
    plain = measured(partial(ours, engine, [None] * members, work, size), device, repeats)
    update = seconds_of(partial(engine.apply, update_of(members)), device)
    single = measured(partial(one_at_a_time, engine, work), device, 1)
    share = ideal_seconds(shape, engine, members, work, size, speed)
    share *= population.rate / (members * work.prompts * work.new_tokens)
    del engine
    dense = engine_of(shape, device, Full(), cuda_graphs=work.cuda_graphs)
    full = measured(partial(ours, dense, who[:FEW], work, size), device, 1)
    cells = (
        shape.name,
        str(members),
        f"{population.rate:,.0f}",
        f"{plain.rate:,.0f}",
        f"{single.rate:,.0f}",
        f"{population.rate / plain.rate:.2f}",
        f"{population.rate / single.rate:.1f}",
        f"{share:.0%}",
        *(f"{one.peak / 1e9:.3f}" for one in (population, plain, full)),
        f"{update:.3f} s",
    )
    return f"| {' | '.join(cells)} |"


def engine_of(
    shape: Shape, device: torch.device, space: LowRank | Full, *, cuda_graphs: bool
) -> InProcessEngine:
    """Load random weights, with masters on the host."""
    section = InProcess.model_validate(
        {
            "device": str(device),
            "master_device": "host",
            "members_per_batch": 1,
            "cuda_graphs": cuda_graphs,
        }
    )
    return InProcessEngine(random_model(shape, device), make_space(space), Sgd(), section)


def ours(
    engine: InProcessEngine,
    members: Sequence[Perturbation | None],
    work: Work,
    microbatch: MicrobatchSettings,
) -> int:
    """Evaluate with this project's engine; return the number of new tokens."""
    examples = prompts(work.prompts)
    return evaluate_members(
        engine, NoGraders(), members, examples, microbatch, Decoding(work.new_tokens)
    ).tokens


def one_at_a_time(engine: InProcessEngine, work: Work) -> int:
    """Evaluate a few members one at a time, on the weights of this engine."""
    tokenizer = engine.pretrained.tokenizer
    ids = [encode_prompt(tokenizer, example) for example in prompts(work.prompts)]
    padded = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
    batch = {name: tensor.to(engine.device) for name, tensor in padded.items()}
    evaluate_one_at_a_time(engine.model, batch, range(FEW), SIGMA, work.new_tokens)
    return FEW * work.prompts * work.new_tokens


def update_of(members: int) -> Update:
    """Return the update of a population of antithetic pairs."""
    return Update(0, 0, SIGMA, SIGMA / 2, tuple((-1) ** k / members for k in range(members // 2)))


def measured(variant: Callable[[], int], device: torch.device, repeats: int) -> Result:
    """Run once for the peak memory (and to warm up), then for the time."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        tokens = variant()
        peak = torch.cuda.max_memory_allocated(device)
    else:
        with LiveTensors() as live:
            tokens = variant()
        peak = live.peak
    return Result(tokens / statistics.median(_times(variant, device, repeats)), peak)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Time one call, after a call to warm up."""
    work()
    return _times(work, device, 1)[0]


def _times(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        _wait_for(device)
        began = time.perf_counter()
        work()
        _wait_for(device)
        seconds.append(time.perf_counter() - began)
    return seconds


def ideal_seconds(
    shape: Shape,
    engine: InProcessEngine,
    members: int,
    work: Work,
    microbatch: MicrobatchSettings,
    speed: float,
) -> float:
    """Return the least seconds of reading weights per step, and keys and values per token."""
    item = engine.dtype.itemsize
    pieces = -(-members // members_per_microbatch(microbatch, work.prompts))
    weights = (shape.linear + shape.head) * item * work.new_tokens * pieces
    start = max(
        len(encode_prompt(engine.pretrained.tokenizer, example))
        for example in prompts(work.prompts)
    )
    read = sum(range(start, start + work.new_tokens)) * 2 * shape.kv_width * shape.layers * item
    return (weights + read * members * work.prompts) / speed


def copy_speed(device: torch.device) -> float:
    """Return bytes per second, read and written, of a copy too large for any cache."""
    source = torch.zeros(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    seconds = _times(lambda: target.copy_(source), device, 5)
    return 2 * source.nbytes / min(seconds)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
