"""Elementwise fp32 operations that give the same bits on every machine and thread count.

The journal holds coefficients and not weights, so a replayed step must give the same bits. Hence:

- A step uses only additions, multiplications, divisions and square roots, one tensor operation
  each; these are correctly rounded, hence the same on every machine. torch's fused operations
  (addcmul, addcdiv, lerp, alpha=, foreach) are not used: it depends on the processor whether they
  round a product and a sum once or twice.
- Square roots are computed in fp64 and then rounded: torch's fp32 root on a CPU is off by one unit
  in 17 % of results (measured, torch 2.13). The exact root of an fp32 number is at least 4 fp64
  units away from the nearest midpoint of two fp32 numbers, so an fp64 root with a small error
  rounds to the correct fp32 number.
- No reductions, so the result does not depend on how threads share the work.
- No tensor is divided by a Python number: CUDA multiplies by the reciprocal instead. Scalars are
  computed as Python floats and rounded to fp32 once.
- Every operation has `out=` and runs over flat chunks: a step needs at most 16 MB of memory in
  addition to masters, gradient and moments.
"""

from collections.abc import Iterator

import numpy as np
import torch

_CHUNK = 2**20


class ScratchBuffers:
    """Buffers for temporary values, allocated once per device and reused for every chunk."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        self._dtypes = dtypes
        self._buffers: dict[torch.device, tuple[torch.Tensor, ...]] = {}

    def like(self, chunk: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return uninitialized buffers of the chunk's length, on its device."""
        if chunk.device not in self._buffers:
            self._buffers[chunk.device] = tuple(
                torch.empty(_CHUNK, dtype=dtype, device=chunk.device) for dtype in self._dtypes
            )
        return tuple(buffer[: chunk.numel()] for buffer in self._buffers[chunk.device])


def flat_chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield flat views of the same chunk of every tensor; the tensors have the same shape."""
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), _CHUNK):
        yield tuple(tensor[start : start + _CHUNK] for tensor in flat)


def round_to_fp32(number: float) -> float:
    """Round to fp32 once, before any kernel does."""
    return float(np.float32(number))


def integer_power(base: float, exponent: int) -> float:
    """Raise to an integer power by multiplication: `**` calls libm, which differs by platform."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
