"""Weight noise as torch tensors, drawn on the device that uses it, with the bits of `noise.py`.

A GPU with Triton, which comes with PyTorch's builds for GPUs, draws in kernels that read only the
table of 65,536 values (`triton_noise.py`), after a comparison with the CPU once in every process.
For every other device the host draws (`cpu_noise.py`), in as many threads as torch has.

Both use integer arithmetic and a table, so they agree bit for bit. A sum is fp32 multiply, then
add, in the order of the directions, never fused; so sums agree as well.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from jaxtyping import Float32

from germline.tensor_noise import cpu_noise
from germline.tensor_noise.cpu_noise import NoiseStream

log = logging.getLogger(__name__)

__all__ = [
    "NoiseStream",
    "concatenated_noise",
    "normals",
    "outer_sum",
    "weighted_sum",
    "write_perturbed",
]

PIECE = 1 << 22
"""Numbers of a member written at once on a GPU: the noise of a piece (16 MB) stays in the cache."""

CPU = torch.device("cpu")


def normals(
    stream: NoiseStream,
    directions: Sequence[int],
    count: int,
    start: int = 0,
    device: torch.device | None = None,
) -> Float32[torch.Tensor, "directions {count}"]:
    """Draw one tensor's noise for many directions: the rows of `noise.draw_noise_rows`.

    A shard draws only its own part, from element `start` of the flattened tensor on.
    """
    device = device or CPU
    if not directions or not count:
        return torch.empty(len(directions), count, device=device)
    drawn: torch.Tensor = _drawer(device).normals(stream, directions, count, start, device)
    return drawn.to(device)


def concatenated_noise(
    run_seed: int,
    generation: int,
    directions: Sequence[int],
    sizes: Mapping[str, int],
    device: torch.device | None = None,
) -> Float32[torch.Tensor, "directions samples"]:
    """Draw many tensors for many directions: the rows of `noise.concatenated_noise`.

    `sizes` has the number of elements by canonical name, in the order of the columns.
    """
    device = device or CPU
    if not directions:
        return torch.empty(0, sum(sizes.values()), device=device)
    drawer = _drawer(device)
    of = run_seed, generation, directions, sizes
    drawn: torch.Tensor = drawer.concatenated_noise(*of, device)
    return drawn.to(device)


def weighted_sum(
    stream: NoiseStream,
    coefficients: Sequence[float],
    count: int,
    start: int = 0,
    device: torch.device | None = None,
) -> Float32[torch.Tensor, " {count}"]:
    """Sum coefficient k times the noise of direction k, in that order, starting from zero.

    A coefficient is rounded to fp32 first. Directions whose coefficient is 0 are not drawn: adding
    0 changes no bit. Besides the sum, memory holds a few MB per thread, whatever the number of
    directions.
    """
    device = device or CPU
    weights = [(k, coefficient) for k, coefficient in enumerate(coefficients) if coefficient]
    if not weights or not count:
        return torch.zeros(count, device=device)
    total: torch.Tensor = _drawer(device).weighted_sum(stream, weights, count, start, device)
    return total.to(device)


def outer_sum(
    a: Float32[torch.Tensor, "products rows"], b: Float32[torch.Tensor, "products columns"]
) -> Float32[torch.Tensor, "rows columns"]:
    """Sum a_k b_k^T over k, in that order, starting from zero: fp32 multiply, then add.

    A matrix product is faster, but the order of its sums depends on the library and the thread
    count. The Triton kernel keeps a tile of the sum in registers while it adds all products;
    other devices read and write the sum for every product.
    """
    total: torch.Tensor = _drawer(a.device).outer_sum(a, b)
    return total


def write_perturbed(
    stream: NoiseStream, direction: int, scale: float, center: torch.Tensor, out: torch.Tensor
) -> None:
    """Write center + scale * noise into `out`, rounded to its dtype.

    The product and the sum are rounded to fp32, in that order. A piece is drawn, added and written
    while it is in the cache, so no copy of the whole tensor is made.

    Args:
        stream: of the tensor.
        direction: index of the row.
        scale: sign times sigma, in weight units.
        center: fp32, contiguous; not changed. A center on the host is copied to the device of `out`
            piece by piece.
        out: contiguous, of the same shape, of any floating-point dtype; the noise is drawn on its
            device.
    """
    center, out = center.view(-1), out.view(-1)
    if center.device.type == "cpu" and out.device.type == "cpu":
        cpu_noise.write_perturbed(stream, direction, scale, center, out)
        return
    for start in range(0, len(out), PIECE):
        part, into = center[start : start + PIECE], out[start : start + PIECE]
        drawn = normals(stream, [direction], len(into), start, device=out.device)[0]
        into.copy_(drawn.mul_(scale).add_(part.to(out.device)))


def _drawer(device: torch.device) -> ModuleType:
    return _of_gpu(device) if device.type == "cuda" else cpu_noise


@cache
def _of_gpu(device: torch.device) -> ModuleType:
    """Return the Triton kernels if they draw and sum the right bits here, else `cpu_noise`."""
    if not find_spec("triton"):
        return cpu_noise
    try:
        # Imported on use: importing Triton takes a second.
        kernels = import_module("germline.tensor_noise.triton_noise")
        if _agree(kernels, device):
            return kernels
        found = "its kernels compute other bits"
    except Exception as error:  # noqa: BLE001 - compilers and drivers raise any class
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    log.warning("noise on %s is drawn without Triton, several times slower: %s", device, found)
    return cpu_noise


def _agree(implementation: ModuleType, device: torch.device) -> bool:
    """Compare some bits with those of the CPU."""
    stream, count, start = NoiseStream(0, 0, "agree"), 1000, 5
    weights = [(0, 0.3), (1, -1.7)]

    def some(way: ModuleType, where: torch.device) -> list[torch.Tensor]:
        drawn = way.normals(stream, [0, 1], count, start, where)
        total = way.weighted_sum(stream, weights, count, start, where)
        return [part.cpu() for part in (drawn, total, way.outer_sum(drawn[:, :70], drawn))]

    return all(map(torch.equal, some(implementation, device), some(cpu_noise, CPU)))
