"""Time and memory of a dense update of 30 members, compared with the field's loop.

    python -m benchmarks.update                     # the table of docs/results.md
    python -m benchmarks.update --models nano --repeats 15

`field` is the update of the scripts and libraries ES for language models started with (see
`field_way.py`): member by member and tensor by tensor, seed a generator, draw the noise of the
tensor again, scale it and add it to the weights. Ours is the update of a run, `Masters.apply`: the
same sum over members in a fixed order, in fp32, then the optimizer.

`full, independent` has a direction per member, as the field's members have; `full, antithetic` has
one per pair, which is half the draws for the same population and the default of a run. `low_rank`
has rank 1.

`tensors` is the peak memory of tensors in addition to the weights, counted per operation; `arrays`
is that of numpy arrays. Both are measured in a run that is not timed. The sum of a dense update is
in both, as the tensor and the array share their memory.
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.field_way import add_noise
from benchmarks.memory import MEGABYTE, LiveTensors
from germline.config import Full, LowRank
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import load_pretrained
from germline.nano import NANO_DIR
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.types import Update

MEMBERS = 30
SIGMA, LEARNING_RATE = 1e-3, 5e-4
VARIANTS: dict[str, tuple[Full | LowRank, int]] = {
    "full, independent": (Full(), MEMBERS),
    "full, antithetic": (Full(), MEMBERS // 2),
    "low_rank, independent": (LowRank(), MEMBERS),
    "low_rank, antithetic": (LowRank(), MEMBERS // 2),
}
"""Space and number of directions."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time updates and the usual loop.")
    parser.add_argument("--models", nargs="+", choices=["nano", "large"], default=["nano", "large"])
    parser.add_argument("--repeats", type=int, help="rounds; by default 15 of nano, 3 of large")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{MEMBERS} members, {arguments.threads} threads, torch {torch.__version__}\n")
    columns = ("directions", "seconds", "field / it", "tensors, MB", "arrays, MB")
    print(f"| model | numbers | update | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.models:
        repeats = arguments.repeats or (15 if name == "nano" else 3)
        for line in table(name, repeats):
            print(line, flush=True)


def table(name: str, repeats: int) -> Iterator[str]:
    """Time all variants of one model in turn."""
    model = load_pretrained(str(NANO_DIR)).model if name == "nano" else large()
    size = sum(parameter.numel() for parameter in model.parameters())
    work: dict[str, Callable[[], None]] = {"field": partial(field, model)}
    work |= {variant: ours(model, *how) for variant, how in VARIANTS.items()}
    beside = {variant: memory_beside(model, one) for variant, one in work.items()}
    seconds: dict[str, list[float]] = {variant: [] for variant in work}
    for _ in range(repeats):
        for variant, one in work.items():
            began = time.perf_counter()
            one()
            seconds[variant].append(time.perf_counter() - began)
    medians = {variant: statistics.median(taken) for variant, taken in seconds.items()}
    for variant, median in medians.items():
        directions = VARIANTS[variant][1] if variant in VARIANTS else MEMBERS
        cells = f"{name} | {size / 1e6:.1f} M | {variant} | {directions} | {median:.3f}"
        memory = " | ".join(f"{one / MEGABYTE:.1f}" for one in beside[variant])
        yield f"| {cells} | {medians['field'] / median:.2f} | {memory} |"


def large() -> nn.Module:
    """Build a model of 101 million numbers in the shapes of a decoder."""
    blocks = [
        nn.ModuleDict(
            {
                **{side: nn.Linear(1024, 1024, bias=False) for side in "qkvo"},
                "up": nn.Linear(1024, 2048, bias=False),
                "down": nn.Linear(2048, 1024, bias=False),
                "norm": nn.LayerNorm(1024),
            }
        )
        for _ in range(8)
    ]
    return nn.ModuleDict({"embed": nn.Embedding(32_768, 1024), "layers": nn.ModuleList(blocks)})


def utilities() -> np.ndarray:
    """Return utilities of mean zero and variance one."""
    values = np.sin(np.arange(MEMBERS) * 2.7)
    return (values - values.mean()) / values.std()


def field(model: nn.Module) -> None:
    """Update with the usual loop; see `field_way.add_noise` for its noise."""
    for seed, utility in enumerate(utilities()):
        add_noise(model, seed, LEARNING_RATE / MEMBERS * float(utility))


def ours(model: nn.Module, section: Full | LowRank, directions: int) -> Callable[[], None]:
    """Return an update as a run does it, on weights of its own model."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    masters = Masters(tensors, list_tensors(model), make_space(section), Sgd(), "constant")
    coefficients = tuple((utilities()[:directions] / MEMBERS).tolist())
    update = Update(0, 0, SIGMA, LEARNING_RATE, coefficients)

    def apply() -> None:
        with torch.no_grad():
            masters.apply(update)

    return apply


def memory_beside(model: nn.Module, work: Callable[[], None]) -> tuple[int, int]:
    """Return the peak bytes of tensors, and of arrays, in addition to the weights."""
    tracemalloc.start()
    with LiveTensors() as live:
        for parameter in model.parameters():
            parameter.detach()  # counted before the work begins
        weights = live.peak
        work()
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return live.peak - weights, arrays


if __name__ == "__main__":
    main()
