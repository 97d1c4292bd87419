"""Weight noise as torch tensors, drawn on the device that uses it, with the bits of `noise.py`.

Three implementations compute the same noise, chosen by the device:

- a CPU: `germline.noise`, in as many threads as torch has (`cpu_noise.py`);
- a GPU with Triton, which comes with PyTorch's CUDA builds: kernels that read only the table of
  65,536 values (`triton_noise.py`), after a comparison with the CPU once in every process;
- any other device: torch's integer operations (`torch_noise.py`); tensors so small that launching
  these takes longer than drawing on the host are drawn on the host.

All of them use integer arithmetic and a table, so they agree bit for bit. A sum is fp32 multiply,
then add, in the order of the directions, never fused; so sums agree as well.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from jaxtyping import Float32

from germline.tensor_noise import cpu_noise, outer_products, torch_noise
from germline.tensor_noise.noise_stream import NoiseStream

log = logging.getLogger(__name__)

__all__ = [
    "NoiseStream",
    "concatenated_noise",
    "normals",
    "outer_sum",
    "weighted_sum",
    "write_perturbed",
]

FEW = 1 << 18
"""Largest tensor, in numbers, that the host draws instead of `torch_noise`, whose 500 launches take
3 ms."""

PIECE = 1 << 22
"""Numbers of a member written at once on a GPU: the noise of a piece (16 MB) stays in the cache."""


def normals(
    stream: NoiseStream,
    directions: Sequence[int],
    count: int,
    start: int = 0,
    device: torch.device | None = None,
) -> Float32[torch.Tensor, "directions {count}"]:
    """Draw one tensor's noise for many directions: the rows of `noise.draw_noise_rows`.

    Args:
        stream: of the tensor.
        directions: one row each.
        count: number of elements.
        start: index of the first element in the flattened tensor: a shard draws only its own part.
        device: of the result; None is the CPU.
    """
    device = device or torch.device("cpu")
    if not directions or not count:
        return torch.empty(len(directions), count, device=device)
    drawer = _implementation(device, count)
    drawn: torch.Tensor = drawer.normals(stream, directions, count, start, device)
    return drawn.to(device)


def concatenated_noise(
    run_seed: int,
    generation: int,
    directions: Sequence[int],
    sizes: Mapping[str, int],
    device: torch.device | None = None,
) -> Float32[torch.Tensor, "directions samples"]:
    """Draw many tensors for many directions: the rows of `noise.concatenated_noise`.

    Args:
        run_seed: any integer.
        generation: 0 for the first.
        directions: one row each.
        sizes: number of elements by canonical name, in the order of the columns.
        device: of the result; None is the CPU.
    """
    device = device or torch.device("cpu")
    if not directions:
        return torch.empty(0, sum(sizes.values()), device=device)
    streams = [NoiseStream(run_seed, generation, name) for name in sizes]
    drawer = _implementation(device, max(sizes.values()))
    counts = list(sizes.values())
    drawn: torch.Tensor = drawer.concatenated_noise(streams, directions, counts, device)
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
    device = device or torch.device("cpu")
    weights = [(k, coefficient) for k, coefficient in enumerate(coefficients) if coefficient]
    if not weights or not count:
        return torch.zeros(count, device=device)
    drawer = _implementation(device, count)
    total: torch.Tensor = drawer.weighted_sum(stream, weights, count, start, device)
    return total.to(device)


def outer_sum(
    a: Float32[torch.Tensor, "products rows"], b: Float32[torch.Tensor, "products columns"]
) -> Float32[torch.Tensor, "rows columns"]:
    """Sum a_k b_k^T over k, in that order, starting from zero: fp32 multiply, then add.

    The Triton kernel keeps a tile of the sum in registers while it adds all products, so that a GPU
    reads vectors instead of the sum; other devices read and write the sum for every product.
    """
    if a.device.type == "cuda" and (kernels := _of_gpu(a.device)) is not torch_noise:
        total: torch.Tensor = kernels.outer_sum(a, b)
        return total
    return outer_products.outer_sum(a, b)


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
            piece by piece, because drawing there is faster than drawing on the host and copying.
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


def _implementation(device: torch.device, count: int) -> ModuleType:
    """Choose the implementation that draws `count` numbers of a tensor for a device."""
    if device.type == "cpu":
        return cpu_noise
    drawer = _of_gpu(device) if device.type == "cuda" else torch_noise
    return cpu_noise if drawer is torch_noise and count <= FEW else drawer


@cache
def _of_gpu(device: torch.device) -> ModuleType:
    """Return the Triton kernels if they draw and sum the right bits here, else `torch_noise`."""
    if not find_spec("triton"):
        return torch_noise
    try:
        # Imported on use: importing Triton takes a second.
        kernels = import_module("germline.tensor_noise.triton_noise")
        if _agree(kernels, device):
            return kernels
        found = "its kernels compute other bits"
    except Exception as error:  # noqa: BLE001 - compilers and drivers raise any class
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    log.warning("noise on %s is drawn without Triton, several times slower: %s", device, found)
    return torch_noise


def _agree(implementation: ModuleType, device: torch.device) -> bool:
    """Compare some bits with those of the CPU."""
    stream, count, start = NoiseStream(0, 0, "agree"), 1000, 5
    weights = [(0, 0.3), (1, -1.7)]
    there = implementation.normals(stream, [0, 1], count, start, device)
    sums = implementation.weighted_sum(stream, weights, count, start, device)
    outer = implementation.outer_sum(there[:, :70], there)
    cpu = torch.device("cpu")
    here = cpu_noise.normals(stream, [0, 1], count, start, cpu)
    return (
        torch.equal(there.cpu(), here)
        and torch.equal(sums.cpu(), cpu_noise.weighted_sum(stream, weights, count, start, cpu))
        and torch.equal(outer.cpu(), outer_products.outer_sum(here[:, :70], here))
    )
