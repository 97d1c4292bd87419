"""A model of the time of a decode step on an H100-class GPU, from bytes and launches.

    python -m benchmarks.gpu_model            # the tables of docs/scaling.md, two minutes, 3 GB

Nothing here is measured on a GPU. The simulated GPU (`tests/simulated_gpu.py`) counts the
operations of a step and the bytes that each reads and writes, for models of one and two layers with
the widths of the model, and for 16 and 32 rows; the difference is one layer, and bytes are linear
in rows. The data sheet of the GPU, the shares of it that are reached, and the cost of a launch are
assumed:

    step = max(host, device)
    host = operations x launch
    device = bytes / (bandwidth x share), or products / (arithmetic x share) where that is longer

Left out: caches (data in the 50 MB of L2 is counted as if read from memory), the matrix products of
attention, and the time between dependent kernels.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from benchmarks.shapes import QWEN, Shape, prompts, random_model
from germline.config import InProcess, LowRank
from germline.engines.inprocess import InProcessEngine
from germline.engines.sampling import choose_tokens
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.types import Decoding, SeedPerturbation
from tests.simulated_gpu import DEVICE, NAME, Counts, counted

FEW, MORE = 16, 32
"""Rows that are counted; larger batches are extrapolated."""
EXAMPLES = 8
PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::linear"))
CORRECTIONS = frozenset(("aten::bmm", "aten::baddbmm"))
ATTENTION = frozenset(("aten::scaled_dot_product_attention",))
SORT_BYTES = 192
"""Bytes per logit that a sort reads and writes: 8 passes over a key and its index (assumed)."""


@dataclass(frozen=True)
class Gpu:
    """The data sheet of an H100 SXM, the shares that are assumed, and the host's costs."""

    bandwidth: float = 3.35e12 * 0.6
    arithmetic: float = 990e12 * 0.4
    host_link: float = 55e9 * 0.8
    launch: float = 6e-6


@dataclass(frozen=True)
class Batch:
    """A batch that is decoded: members x examples, and the number of cached tokens."""

    rows: int
    examples: int = 64
    tokens: int = 384


@dataclass(frozen=True)
class Layer:
    """The work of one layer in a step.

    Attributes:
        operations: number of launches, without views.
        activations: bytes per row outside of products and attention.
        corrections: bytes per row of the products of low-rank members, without their factors.
    """

    operations: int
    activations: float
    corrections: float


def main() -> None:
    """Print the tables."""
    print("\n".join(table()))


def table(names: tuple[str, ...] = ("0.5B", "7B")) -> Iterator[str]:
    """Yield a row per model, batch and decoding."""
    gpu = Gpu()
    yield (
        "| model | rows | tokens | weights | keys, values | corrections | activations | logits "
        "| device, ms | products, ms | launches | host, ms |"
    )
    yield "|" + "---|" * 12
    for name in names:
        shape = QWEN[name]
        layer = layer_of(shape)
        for rows in (64, 1024):
            for decoding in (Decoding(1), Decoding(1, temperature=0.7, top_p=0.9)):
                yield line(shape, layer, Batch(rows), decoding, gpu)


def line(shape: Shape, layer: Layer, batch: Batch, decoding: Decoding, gpu: Gpu) -> str:
    """Format one row: gigabytes by part, milliseconds, launches."""
    members = batch.rows // batch.examples
    chosen = counted_choice(decoding)
    sort = SORT_BYTES if decoding.temperature else 0
    per_logit = 2 + sum(chosen.touched.values()) / (MORE * CHOICES) + sort
    gigabytes = [
        2 * (shape.linear + shape.head),
        2 * 2 * batch.rows * batch.tokens * shape.layers * shape.kv_width,
        batch.rows * shape.layers * layer.corrections + 2 * members * shape.sides,
        batch.rows * shape.layers * layer.activations,
        batch.rows * shape.vocabulary * per_logit,
    ]
    device = sum(gigabytes) / gpu.bandwidth
    products = 2 * batch.rows * (shape.linear + shape.head) / gpu.arithmetic
    launches = shape.layers * layer.operations + sum(chosen.operations.values()) + 12
    cells = [f"{size / 1e9:.2f}" for size in gigabytes]
    how = "sampled" if decoding.temperature else "greedy"
    return (
        f"| {shape.name} | {batch.rows} | {how} | {' | '.join(cells)} | {1e3 * device:.1f} "
        f"| {1e3 * products:.1f} | {launches} | {1e3 * launches * gpu.launch:.1f} |"
    )


CHOICES = 1024
"""Vocabulary size at which choosing a token is counted."""


def counted_choice(decoding: Decoding) -> Counts:
    """Count choosing a token for some rows, without the operations inside a sort."""
    logits = torch.randn(MORE, CHOICES, dtype=torch.bfloat16).to(DEVICE)  # noqa: TID251 - any
    uniforms = torch.full((MORE,), 0.5, dtype=torch.float64).to(DEVICE)
    with counted() as counts:
        choose_tokens(logits, uniforms, decoding)
    return counts


def layer_of(shape: Shape) -> Layer:
    """Count one layer of a model, with a rank-1 member for every eight rows."""
    steps = {
        (layers, rows): counted_step(replace(shape, layers=layers), rows)
        for layers in (1, 2)
        for rows in (FEW, MORE)
    }
    more, less = steps[2, MORE], steps[1, MORE]
    in_layer = {rows: _touched(steps[2, rows], steps[1, rows]) for rows in (FEW, MORE)}
    per_row = {
        name: (in_layer[MORE][name] - in_layer[FEW].get(name, 0)) / (MORE - FEW)
        for name in in_layer[MORE]
    }
    of_products = sum(per_row.get(name, 0) for name in PRODUCTS)
    of_corrections = sum(per_row.get(name, 0) for name in CORRECTIONS)
    of_attention = sum(per_row.get(name, 0) for name in ATTENTION)
    rest = sum(per_row.values()) - of_products - of_corrections - of_attention
    # Members are proportional to rows here; their factors are counted separately.
    factors = 2 * shape.sides / shape.layers / EXAMPLES
    operations = sum(more.operations.values()) - sum(less.operations.values())
    return Layer(operations, rest + of_products, of_corrections - factors)


def counted_step(shape: Shape, rows: int) -> Counts:
    """Count one decode step of a model with a small vocabulary: four steps minus three."""
    pretrained = random_model(replace(shape, vocabulary=1024, tied=True), torch.device("cpu"))
    pretrained.model.to(torch.bfloat16)
    config = InProcess(device=NAME, dtype="bfloat16", threads=1)
    space = make_space(LowRank(rank=1))
    engine = InProcessEngine(pretrained, space, Sgd(), config)
    members = [SeedPerturbation(0, 0, k, 1, 0.01) for k in range(rows // EXAMPLES)]
    found = []
    for tokens in (2, 2, 3):
        with counted() as counts:
            engine.generate(members, prompts(EXAMPLES), Decoding(tokens))
        found.append(counts)
    _, two, three = found
    step = Counts(three.operations - two.operations)
    step.touched = three.touched - two.touched
    return step


def _touched(more: Counts, less: Counts) -> dict[str, int]:
    return {name: more.touched[name] - less.touched[name] for name in more.touched}


if __name__ == "__main__":
    main()
