"""Weight noise in torch's integer operations: the bits of `germline.noise` on any device.

torch has little unsigned 64-bit arithmetic, so words are int64 in two's complement: sums, products
and exclusive ors wrap around to the right bits, shifts to the right are masked, and the high half
of a product is the sum of four products of 32-bit halves.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch

from germline import noise
from germline.tensor_noise.noise_stream import (
    BUMPS,
    LEFT,
    RIGHT,
    ROUNDS,
    SAMPLES_PER_BLOCK,
    NoiseStream,
    as_signed,
    philox_blocks,
)
from germline.tensor_noise.outer_products import outer_sum as outer_sum

PIECE = 1 << 20
"""Samples computed at once: their indices, the largest array in memory, take 8 MB."""

_LOW = 0xFFFFFFFF


def normals(
    stream: NoiseStream, directions: Sequence[int], count: int, start: int, device: torch.device
) -> torch.Tensor:
    """Draw rows; see `tensor_noise.normals`."""
    drawn = torch.empty(len(directions), count, device=device)
    for row, direction in zip(drawn, directions, strict=True):
        for part, first in _pieces(row):
            part.copy_(_row(stream, direction, len(part), start + first, device))
    return drawn


def concatenated_noise(
    streams: Sequence[NoiseStream],
    directions: Sequence[int],
    counts: Sequence[int],
    device: torch.device,
) -> torch.Tensor:
    """Draw many tensors; see `tensor_noise.concatenated_noise`."""
    drawn = zip(streams, counts, strict=True)
    return torch.cat([normals(one, directions, n, 0, device) for one, n in drawn], dim=1)


def weighted_sum(
    stream: NoiseStream,
    weights: Sequence[tuple[int, float]],
    count: int,
    start: int,
    device: torch.device,
) -> torch.Tensor:
    """Sum rows in order, piece by piece; see `tensor_noise.weighted_sum`."""
    total = torch.zeros(count, device=device)
    for part, first in _pieces(total):
        for direction, coefficient in weights:
            row = _row(stream, direction, len(part), start + first, device)
            part.add_(row.mul_(float(np.float32(coefficient))))
    return total


def _pieces(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]]:
    for first in range(0, len(tensor), PIECE):
        yield tensor[first : first + PIECE], first


def _row(
    stream: NoiseStream, direction: int, count: int, start: int, device: torch.device
) -> torch.Tensor:
    first, last = philox_blocks(count, start)
    block = torch.arange(first + 1, last + 1, device=device)  # numpy counts blocks from 1
    words = _philox(block, direction, stream.generation, stream.key)
    shifts = torch.arange(0, 64, 16, device=device)
    entries = (words[:, :, None] >> shifts).bitwise_and_(0xFFFF).flatten()
    skip = start - first * SAMPLES_PER_BLOCK
    return _table(device)[entries[skip : skip + count]]


def _philox(block: torch.Tensor, row: int, round_: int, key: tuple[int, int]) -> torch.Tensor:
    """Compute the words `[blocks, 4]` of counters (block, row, round, 0)."""
    c0, c1 = block, torch.full_like(block, as_signed(row))
    c2, c3 = torch.full_like(block, as_signed(round_)), torch.zeros_like(block)
    for turn in range(ROUNDS):
        k0, k1 = (as_signed((k + turn * bump) % 2**64) for k, bump in zip(key, BUMPS, strict=True))
        left, right = _high(LEFT, c0), _high(RIGHT, c2)
        c0, c1, c2, c3 = (
            right ^ c1 ^ k0,
            c2 * as_signed(RIGHT),
            left ^ c3 ^ k1,
            c0 * as_signed(LEFT),
        )
    return torch.stack((c0, c1, c2, c3), dim=1)


def _high(factor: int, words: torch.Tensor) -> torch.Tensor:
    """Return the upper 64 bits of unsigned products."""
    factor_high, factor_low = factor >> 32, factor & _LOW
    high, low = _upper(words), words & _LOW
    crossed, other = low * factor_high, high * factor_low
    carry = _upper(low * factor_low) + (crossed & _LOW) + (other & _LOW)
    return high * factor_high + _upper(crossed) + _upper(other) + _upper(carry)


def _upper(words: torch.Tensor) -> torch.Tensor:
    """Shift right by 32 and fill with zeros."""
    return (words >> 32) & _LOW


@cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(noise.NORMAL_TABLE.copy()).to(device)
