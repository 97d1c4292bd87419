"""Elementwise fp32 that gives the same bits on another machine and thread count.

The journal holds coefficients and not weights, so a replayed step must repeat to the bit. Hence:

- Only additions, multiplications, divisions and square roots, one tensor operation each, correctly
  rounded, hence the same everywhere. torch's fused forms (addcmul, addcdiv, lerp, alpha=, foreach)
  are left out: whether they contract a product and a sum into one rounding differs by processor.
- Square roots are taken in fp64 and then rounded: torch's fp32 root on a CPU is off by one unit in
  17 % of results (measured, torch 2.13). The exact root of an fp32 number is at least 4 units of
  fp64 away from where rounding to fp32 turns, so any fp64 root worth the name gives the same fp32.
- No reductions, so nothing depends on how work is split among threads.
- Never a tensor divided by a number: CUDA multiplies by the reciprocal instead. Numbers are worked
  out in Python floats and rounded to fp32 once.
- `out=` always, over flat chunks: beside masters, gradient and moments a step needs at most 16 MB.
"""

from collections.abc import Iterator

import numpy as np
import torch

_CHUNK = 2**20


class ScratchBuffers:
    """Buffers for temporaries, allocated once per device and lent for one chunk at a time."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        self._dtypes = dtypes
        self._buffers: dict[torch.device, tuple[torch.Tensor, ...]] = {}

    def like(self, chunk: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Lend buffers of the chunk's length and device; their content is whatever was left."""
        if chunk.device not in self._buffers:
            self._buffers[chunk.device] = tuple(
                torch.empty(_CHUNK, dtype=dtype, device=chunk.device) for dtype in self._dtypes
            )
        return tuple(buffer[: chunk.numel()] for buffer in self._buffers[chunk.device])


def flat_chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Cut same-shape contiguous tensors into the same flat views."""
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), _CHUNK):
        yield tuple(tensor[start : start + _CHUNK] for tensor in flat)


def check_step_tensors(name: str, master: torch.Tensor, gradient: torch.Tensor) -> None:
    """Refuse tensors a step would silently cast, broadcast or copy."""
    for role, tensor in (("master", master), ("gradient", gradient)):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(
                f"{role} of {name!r} is {tensor.dtype}, contiguous={tensor.is_contiguous()}; "
                "steps need contiguous torch.float32"
            )
    if master.shape != gradient.shape or master.device != gradient.device:
        raise ValueError(
            f"gradient of {name!r} is {tuple(gradient.shape)} on {gradient.device} but the master "
            f"is {tuple(master.shape)} on {master.device}; they must agree"
        )


def zeros_for_state(name: str, kept: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
    """Return what an optimizer keeps for a tensor, on the master's device.

    Raises:
        ValueError: it has another shape than the master.
    """
    if kept.shape != master.shape:
        raise ValueError(
            f"moments of {name!r} have shape {tuple(kept.shape)} but the tensor has "
            f"{tuple(master.shape)}; the snapshot belongs to another model"
        )
    return kept.to(master.device)


def round_to_fp32(number: float) -> float:
    """Round to fp32 here, once, rather than wherever a kernel would."""
    return float(np.float32(number))


def integer_power(base: float, exponent: int) -> float:
    """Raise to a whole power by multiplication only: `**` asks libm, which differs by platform."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
