"""Weight noise as torch tensors, drawn on the device that wants it, with the bits of `noise.py`.

The same noise has three ways of being computed, chosen by the device:

- a CPU: `germline.noise`, in as many threads as torch has (`host.py`);
- a GPU with Triton, which comes with PyTorch's CUDA builds: kernels that compute every bit where it
  is used and read nothing but the table of 65,536 values (`kernels.py`);
- any other device: torch's integer operations (`integers.py`).

All of them are integer arithmetic and a table, so they agree bit for bit. A sum is fp32 multiply,
then add, in the order of the directions, never fused; so sums agree as well.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float32

from germline.tensor_noise import host, integers
from germline.tensor_noise.stream import Stream

__all__ = ["Stream", "normals", "weighted_sum"]


@runtime_checkable
class _Way(Protocol):
    """How noise is drawn on one kind of device."""

    def normals(
        self,
        stream: Stream,
        directions: Sequence[int],
        count: int,
        start: int,
        device: torch.device,
    ) -> torch.Tensor: ...

    def weighted_sum(
        self,
        stream: Stream,
        weights: Sequence[tuple[int, float]],
        count: int,
        start: int,
        device: torch.device,
    ) -> torch.Tensor: ...


def normals(
    stream: Stream,
    directions: Sequence[int],
    count: int,
    start: int = 0,
    device: torch.device | None = None,
) -> Float32[torch.Tensor, "directions {count}"]:
    """Draw one tensor's noise for many directions: the rows of `noise.normals`.

    Args:
        stream: whose noise.
        directions: one row each.
        count: number of elements.
        start: index of the first element in the flattened tensor: a shard draws only its own part.
        device: where the result is wanted; the CPU unless told.
    """
    device = device or torch.device("cpu")
    if not directions or not count:
        return torch.empty(len(directions), count, device=device)
    return _way(device).normals(stream, directions, count, start, device)


def weighted_sum(
    stream: Stream,
    coefficients: Sequence[float],
    count: int,
    start: int = 0,
    device: torch.device | None = None,
) -> Float32[torch.Tensor, " {count}"]:
    """Sum coefficient k times the noise of direction k, in that order, starting from zero.

    A coefficient is rounded to fp32 first. Directions whose coefficient is 0 are not drawn: adding
    0 changes no bit. Nothing of the size of all directions is ever held: beside the sum there are
    a few MB per thread.
    """
    device = device or torch.device("cpu")
    weights = [(k, coefficient) for k, coefficient in enumerate(coefficients) if coefficient]
    if not weights or not count:
        return torch.zeros(count, device=device)
    return _way(device).weighted_sum(stream, weights, count, start, device)


def _way(device: torch.device) -> _Way:
    if device.type == "cpu":
        return host
    return _kernels() if device.type == "cuda" and find_spec("triton") else integers


@cache
def _kernels() -> _Way:
    # Only now: importing Triton takes a second, and most machines have none.
    way: _Way = import_module("germline.tensor_noise.kernels")
    return way
