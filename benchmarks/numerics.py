"""Effect of rounding on an update, and on the weights after evaluating a generation.

    python -m benchmarks.numerics                   # the table of docs/results.md

One generation of 30 members on the nano model, all weights searched, with the settings of Qiu et
al. (sigma 0.001, learning rate 0.0005), in three implementations:

- `subtract and add`: weights have the serving dtype. A member's noise is added to them, the member
  is evaluated, and its noise is subtracted again. The update is 30 such additions.
- `fp32 sum, one add`: the same evaluation, but the update is summed in fp32 and added once to the
  weights in the serving dtype.
- `masters`: this project's engine. Weights are fp32, a member is written into the serving copy and
  reset from the masters, and the update is added to the masters.

*Cosine* is the cosine of the actual and the intended update, in fp64 and over all weights; *moved*
is the share of weights that changed. *Drift* is the change of the weights by evaluating, in units
of the intended update; *changed* counts the numbers that evaluating changed in the weights and,
with masters, in the serving copy.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.field_way import add_noise
from germline import noise
from germline.config import Full, InProcess, Nes
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.nano import NANO_DIR
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.types import Decoding, Example, Update

MEMBERS, SIGMA, LEARNING_RATE = 30, 1e-3, 5e-4
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Result:
    """A row of the table; see the top of this file."""

    cosine: float
    moved: float
    drift: float
    changed: int


def utilities() -> np.ndarray:
    """Return utilities of mean zero and variance one."""
    values = np.sin(np.arange(MEMBERS) * 2.7)
    return (values - values.mean()) / values.std()


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description="Cosines and drift per dtype.").parse_args()
    print(f"nano, {MEMBERS} members, torch {torch.__version__}\n")
    print("| dtype | way | cosine | moved | drift | changed |")
    print("|---|---|---|---|---|---|")
    for name in DTYPES:
        for way, result in ways(name):
            figures = f"{result.cosine:.6f} | {result.moved:.1%} | {result.drift:.2g}"
            print(f"| {name} | {way} | {figures} | {result.changed} |", flush=True)


def ways(dtype: str) -> Iterator[tuple[str, Result]]:
    """Yield the three lines of a dtype."""
    yield "subtract and add", field(dtype, sums=False)
    yield "fp32 sum, one add", field(dtype, sums=True)
    yield "masters", ours(dtype)


@torch.no_grad()
def field(dtype: str, *, sums: bool) -> Result:
    """Evaluate and update weights of a dtype in place, without generating, which has no effect."""
    model: Any = load_pretrained(str(NANO_DIR)).model.to(DTYPES[dtype])
    start = copied(model.named_parameters())
    for seed in range(MEMBERS):
        add_noise(model, seed, SIGMA)
        add_noise(model, seed, -SIGMA)
    evaluated = copied(model.named_parameters())
    scales = [LEARNING_RATE / MEMBERS * float(utility) for utility in utilities()]
    meant = summed(model, scales, torch.float64)
    if sums:
        for name, change in summed(model, scales, torch.float32).items():
            model.get_parameter(name).add_(change.to(DTYPES[dtype]))
    else:
        for seed, scale in enumerate(scales):
            add_noise(model, seed, scale)
    return compared(start, evaluated, copied(model.named_parameters()), meant)


def summed(model: nn.Module, scales: Sequence[float], dtype: torch.dtype) -> Tensors:
    """Sum the noise of `field_way.add_noise` in a dtype."""
    drawn = deepcopy(model)
    total = {name: torch.zeros_like(one, dtype=dtype) for name, one in drawn.named_parameters()}
    for seed, scale in enumerate(scales):
        for parameter in drawn.parameters():
            parameter.zero_()
        add_noise(drawn, seed, 1.0)  # added to zeros, noise is not rounded
        for name, parameter in drawn.named_parameters():
            total[name] += scale * parameter.to(dtype)
    return total


def ours(dtype: str) -> Result:
    """Evaluate and update with the engine of a run."""
    section = InProcess(device="cpu", dtype=dtype, master_device="device")
    engine = InProcessEngine(load_pretrained(str(NANO_DIR)), make_space(Full()), Sgd(), section)
    settings = Nes(population=MEMBERS, antithetic=False, sigma=SIGMA, learning_rate=LEARNING_RATE)
    strategy = make_strategy(settings, run_seed=0, generations=1)
    population = strategy.ask(0)
    start, serving = copied(engine.weights.tensors.items()), copied(engine.serving.items())
    engine.generate(population.members, [Example(0, "What is 1 + 2?", "", chat=True)], Decoding(4))
    evaluated, served = copied(engine.weights.tensors.items()), copied(engine.serving.items())
    update = strategy.tell(population, utilities())
    assert isinstance(update, Update)
    engine.apply(update)
    result = compared(start, evaluated, engine.weights.tensors, intended(update, start))
    return replace(result, changed=result.changed + changed(serving, served))


def intended(update: Update, start: Tensors) -> Tensors:
    """Sum an update in fp64."""
    meant = {}
    for name, weights in start.items():
        total = np.zeros(weights.numel())
        for direction, coefficient in enumerate(update.coefficients):
            where = (update.run_seed, update.generation, direction, name, weights.numel())
            total += (
                update.learning_rate * coefficient * noise.weight_noise(*where).astype(np.float64)
            )
        meant[name] = torch.from_numpy(total).reshape(weights.shape)
    return meant


def copied(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return copies of tensors."""
    return {name: tensor.detach().clone() for name, tensor in tensors}


def compared(start: Tensors, evaluated: Tensors, updated: Tensors, meant: Tensors) -> Result:
    """Compute a row from the weights at the start, after evaluating, and after the update."""
    made, wanted = flat(updated) - flat(evaluated), flat(meant)
    drift = flat(evaluated) - flat(start)
    return Result(
        cosine=float(made @ wanted / (made.norm() * wanted.norm())),
        moved=float((made != 0).double().mean()),
        drift=float(drift.norm() / wanted.norm()),
        changed=changed(start, evaluated),
    )


def changed(before: Tensors, after: Tensors) -> int:
    """Count numbers that differ in any bit."""
    return sum(int((words(before[name]) != words(after[name])).sum()) for name in before)


def words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of numbers as integers, because 0 and -0 are equal as numbers."""
    return tensor.contiguous().view(torch.int32 if tensor.itemsize == 4 else torch.int16)


def flat(tensors: Tensors) -> torch.Tensor:
    """Concatenate tensors in fp64."""
    return torch.cat([tensor.double().flatten() for tensor in tensors.values()])


if __name__ == "__main__":
    main()
