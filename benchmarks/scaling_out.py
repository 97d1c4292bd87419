"""Predictions of the scaling laws for 7B and 72B on 8 and 512 GPUs: time, memory and network.

    python -m benchmarks.scaling_out            # a table of docs/scaling.md, in seconds

Nothing here was run on a GPU. The counts (weights read, products, keys and values, factors) are
those of `benchmarks/scaling.py`, whose laws were fitted on a CPU. The speed of a GPU is that of its
public data sheet, times the shares named below:

    step     = max(bytes of weights, keys and values / bandwidth, products / arithmetic)     (1)
    generate = microbatches per engine x (products of prompts / arithmetic + steps x step)   (2)
    update   = numbers searched x (16 directions + 12) bytes / bandwidth                     (3)
    memory   = serving weights + fp32 masters + tokens held + rows + factors                 (4)

all of them divided by the GPUs that share an engine. Every engine does (3): it adds all directions
in order, so that all engines get the same bits. For each direction it writes a product, reads it,
and reads and writes the sum, 4 bytes each; more engines do not make it faster. Masters are assumed
to be on the device: on the host (`master_device: host`) the update runs there, at a tenth of the
bandwidth or less.

Left out: the matrix products of attention, communication between the GPUs of one engine, grading,
and the fixed cost of a step (CUDA graphs remove most of it).

Bytes over the network are those of pickled updates and completions, which are measured.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.shapes import QWEN, Shape
from germline.engines.decode_batch import prefill_tokens_on_gpu
from germline.types import Completion, Update


@dataclass(frozen=True)
class Gpu:
    """A data sheet (NVIDIA H200 SXM, dense bf16), and the shares that are assumed to be reached."""

    bandwidth: float = 4.8e12
    arithmetic: float = 989e12
    memory: float = 141e9
    share_of_bandwidth: float = 0.6
    share_of_arithmetic: float = 0.4


@dataclass(frozen=True)
class Case:
    """One generation on a cluster.

    Attributes:
        per_engine: GPUs that share one copy of the weights.
    """

    shape: Shape
    gpus: int
    per_engine: int
    members: int = 512
    prompts: int = 64
    prompt_tokens: int = 256
    new_tokens: int = 256
    rows: int = 1024

    @property
    def engines(self) -> int:
        """Number of engines, each with a copy of the weights."""
        return self.gpus // self.per_engine


CASES = tuple(
    Case(QWEN[name], gpus, per_engine, members=members)
    for name, per_engine in (("7B", 1), ("72B", 8))
    for gpus in (8, 512)
    for members in (512, 4096)
)
BYTES = 2
"""Bytes of a served number (bf16)."""


def main() -> None:
    """Print the tables."""
    print("\n".join(table()))


def table() -> Iterator[str]:
    """Yield the lines of the prediction."""
    yield (
        "| model | GPUs | engines | members | generate, s | update, s | memory per GPU, GB "
        "| network: update to each engine | results in all | all-reduce of gradients instead |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for case in CASES:
        sent, returned, gradients = network(case)
        cells = (
            case.shape.name,
            *(str(one) for one in (case.gpus, case.engines, case.members)),
            *(f"{one:,.1f}" for one in (generate(case), update(case), memory(case) / 1e9)),
            f"{sent / 1e3:,.1f} kB",
            f"{returned / 1e6:,.0f} MB",
            f"{gradients / 1e9:,.0f} GB per GPU",
        )
        yield f"| {' | '.join(cells)} |"


def generate(case: Case, gpu: Gpu | None = None) -> float:
    """Return the seconds of generating a generation, by (1) and (2)."""
    gpu = gpu or Gpu()
    of, rows = case.shape, min(case.rows, case.members * case.prompts)
    microbatches = -(-case.members * case.prompts // (rows * case.engines))
    weights = (of.linear + of.head) * BYTES
    kv = rows * 2 * of.kv_width * of.layers * BYTES * (case.prompt_tokens + case.new_tokens / 2)
    read = (weights + kv) / (gpu.bandwidth * gpu.share_of_bandwidth)
    fast = gpu.arithmetic * gpu.share_of_arithmetic
    step = max(read, 2 * rows * (of.linear + of.head) / fast)
    prefill = 2 * rows * case.prompt_tokens * of.linear / fast
    return microbatches * (prefill + case.new_tokens * step) / case.per_engine


def update(case: Case, gpu: Gpu | None = None) -> float:
    """Return the seconds of one update of antithetic pairs, by (3)."""
    gpu = gpu or Gpu()
    traffic = case.shape.linear / case.per_engine * (16 * case.members / 2 + 12)
    return traffic / (gpu.bandwidth * gpu.share_of_bandwidth)


def memory(case: Case) -> float:
    """Return the bytes that a microbatch and the masters take on each GPU, by (4)."""
    of, rows = case.shape, min(case.rows, case.members * case.prompts)
    length = case.prompt_tokens + case.new_tokens
    held = rows * length * 2 * of.kv_width * of.layers * BYTES
    at_once = prefill_tokens_on_gpu(of.hidden, of.inner, length, BYTES)
    activations = min(rows * case.prompt_tokens, at_once) * of.inner * 5 * BYTES
    factors = of.sides * max(1, rows // case.prompts) * BYTES
    return (of.numbers * (BYTES + 4) + held + activations + factors) / case.per_engine


def network(case: Case) -> tuple[int, int, float]:
    """Return bytes of an update to one engine, of all results, and of gradients on every GPU."""
    coefficients = tuple(0.001 * k for k in range(case.members // 2))
    sent = len(pickle.dumps(Update(0, 0, 1e-3, 5e-4, coefficients)))
    text = "word " * (case.new_tokens * 4 // 5)
    one = Completion(text, tuple(range(1000, 1000 + case.new_tokens)), "length", 256)
    many = len(pickle.dumps([one] * 1 + [_like(one, k) for k in range(63)]))
    returned = many * case.members * case.prompts // 64
    return sent, returned, 2 * case.shape.numbers * BYTES / case.per_engine


def _like(one: Completion, shift: int) -> Completion:
    """Return a completion of the same size that pickle cannot share with another."""
    tokens = tuple(token + shift for token in one.tokens)
    return Completion(f"{shift:3} {one.text[4:]}", tokens, one.finish, one.prompt_tokens)


if __name__ == "__main__":
    main()
