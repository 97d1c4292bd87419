"""Weight noise on a GPU in Triton: Philox, lookup and sum in one pass, bit for bit `noise.py`.

A program computes blocks of 16 samples; only the blocks that hold requested elements are computed,
so a shard costs its own elements. Only the lower half of the table is stored (128 kB, which a
multiprocessor can cache), because entry 65535 - q is minus entry q, exactly.

Known limit: tested in Triton's interpreter and by compiling; its speed on a GPU has not been
measured.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from germline import noise
from germline.tensor_noise.cpu_noise import NoiseStream

BLOCKS = 128
"""Philox blocks of one program: 2048 samples."""

TILE = 64
"""Rows and columns of the part of a sum of outer products that one program computes."""

_EXACTLY = {"enable_fp_fusion": False}
"""Compiler options: a fused multiply-add would round once where a CPU rounds twice."""

# Of Philox: multipliers of counter words 0 and 2 (Salmon et al. 2011, as in Random123), and what is
# added to the words of the key from round to round.
_LEFT, _RIGHT = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0xCA5A826395121157)
_BUMP_0, _BUMP_1 = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBB67AE8584CAA73B)
_ROUNDS = tl.constexpr(10)


def _jit(function: Callable[..., Any]) -> Any:
    """Compile for a GPU, without the type checks that the tests wrap around every function."""
    return triton.jit(inspect.unwrap(function))


@_jit
def _word(addresses: tl.tensor, place: tl.tensor) -> tl.tensor:
    """Read one unsigned word."""
    return tl.load(addresses + place).to(tl.uint64, bitcast=True)


@_jit
def _samples(table: tl.tensor, addresses: tl.tensor, row: tl.tensor, block: tl.tensor) -> tl.tensor:
    """Compute the samples `[blocks, 4 words, 4 quarters]` of one row.

    The addresses are the key, the generation, and then the rows.
    """
    k0, k1 = _word(addresses, 0), _word(addresses, 1)
    c0 = (block + 1).to(tl.uint64)  # numpy counts blocks from 1
    c1 = tl.zeros_like(c0) + _word(addresses, 3 + row)
    c2 = tl.zeros_like(c0) + _word(addresses, 2)
    c3 = tl.zeros_like(c0)
    left, right = tl.full((), _LEFT, tl.uint64), tl.full((), _RIGHT, tl.uint64)
    for _ in tl.static_range(_ROUNDS):
        n0 = tl.umulhi(c2, tl.zeros_like(c2) + right) ^ c1 ^ k0
        n2 = tl.umulhi(c0, tl.zeros_like(c0) + left) ^ c3 ^ k1
        c1, c3 = c2 * right, c0 * left
        c0, c2 = n0, n2
        k0, k1 = k0 + tl.full((), _BUMP_0, tl.uint64), k1 + tl.full((), _BUMP_1, tl.uint64)
    words = tl.join(tl.join(c0, c2), tl.join(c1, c3))  # last index: 0 or 1, then 2 or 3
    words = tl.reshape(words, (block.shape[0], 4, 1))
    quarters = (tl.arange(0, 4) * 16).to(tl.uint64)[None, None, :]
    entries = ((words >> quarters) & 0xFFFF).to(tl.int32)
    upper = entries >= 32768
    values = tl.load(table + tl.where(upper, 65535 - entries, entries))
    return tl.where(upper, -values, values)


@_jit
def _elements(block: tl.tensor) -> tl.tensor:
    """Number the samples of `_samples` within their tensor."""
    words = tl.arange(0, 4).to(tl.int64)[None, :, None] * 4
    return block[:, None, None] * 16 + words + tl.arange(0, 4).to(tl.int64)[None, None, :]


@_jit
def _normals(
    out: tl.tensor,
    table: tl.tensor,
    addresses: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    stride: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    row = tl.program_id(1).to(tl.int64)
    block = start // 16 + tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    place = _elements(block) - start
    samples = _samples(table, addresses, row, block)
    tl.store(out + row * stride + place, samples, mask=(place >= 0) & (place < count))


@_jit
def _weighted_sum(  # noqa: PLR0913 - a kernel takes every tensor as one argument
    out: tl.tensor,
    table: tl.tensor,
    addresses: tl.tensor,
    coefficients: tl.tensor,
    rows: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    block = start // 16 + tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    place = _elements(block) - start
    total = tl.zeros((BLOCKS, 4, 4), tl.float32)
    for row in range(rows):
        # Compiled like this, the product is rounded before it is added: see _EXACTLY.
        total += _samples(table, addresses, row, block) * tl.load(coefficients + row)
    tl.store(out + place, total, mask=(place >= 0) & (place < count))


@_jit
def _outer_sum(
    out: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    products: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    lefts, rights = a + row, b + column
    for _ in range(products):
        left = tl.load(lefts, mask=row < rows, other=0.0)
        right = tl.load(rights, mask=column < columns, other=0.0)
        # Compiled like this, the product is rounded before it is added: see _EXACTLY.
        total += left[:, None] * right[None, :]
        lefts += rows
        rights += columns
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out + row[:, None] * columns + column[None, :], total, mask=inside)


def normals(
    stream: NoiseStream, directions: Sequence[int], count: int, start: int, device: torch.device
) -> torch.Tensor:
    """Draw rows."""
    drawn = torch.empty(len(directions), count, device=device)
    with _on(device):
        _draw(drawn, _addresses([stream], directions, device)[0], start)
    return drawn


def concatenated_noise(
    run_seed: int,
    generation: int,
    directions: Sequence[int],
    sizes: Mapping[str, int],
    device: torch.device,
) -> torch.Tensor:
    """Draw many tensors."""
    counts = list(sizes.values())
    drawn = torch.empty(len(directions), sum(counts), device=device)
    streams = [NoiseStream(run_seed, generation, name) for name in sizes]
    addresses = _addresses(streams, directions, device)  # one copy to the device for all of them
    with _on(device):
        for part, words in zip(drawn.split(counts, dim=1), addresses, strict=True):
            _draw(part, words, 0)
    return drawn


def _draw(out: torch.Tensor, addresses: torch.Tensor, start: int) -> None:
    """Fill `out`, `[directions, count]`, which need not be contiguous."""
    rows, count = out.shape
    grid = (_programs(count, start), rows)
    _normals[grid](
        out, _table(out.device), addresses, start, count, out.stride(0), BLOCKS, **_EXACTLY
    )


def weighted_sum(
    stream: NoiseStream,
    weights: Sequence[tuple[int, float]],
    count: int,
    start: int,
    device: torch.device,
) -> torch.Tensor:
    """Sum rows in order."""
    total = torch.empty(count, device=device)
    directions, coefficients = zip(*weights, strict=True)
    with _on(device):
        _weighted_sum[(_programs(count, start),)](
            total,
            _table(device),
            _addresses([stream], directions, device)[0],
            torch.tensor(coefficients, dtype=torch.float32, device=device),
            len(weights),
            start,
            count,
            BLOCKS,
            **_EXACTLY,
        )
    return total


def outer_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sum outer products."""
    (products, rows), columns = a.shape, b.shape[1]
    total = torch.empty(rows, columns, device=a.device)
    grid = (-(-rows // TILE), -(-columns // TILE))
    with _on(a.device):
        _outer_sum[grid](
            total, a.contiguous(), b.contiguous(), products, rows, columns, TILE, **_EXACTLY
        )
    return total


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Select the GPU of a launch; Triton's interpreter has none."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _programs(count: int, start: int) -> int:
    """Count the programs that compute the Philox blocks of 16 samples of these elements."""
    blocks = -(-(start + count) // 16) - start // 16
    return -(-blocks // BLOCKS)


def _addresses(
    streams: Sequence[NoiseStream], directions: Sequence[int], device: torch.device
) -> torch.Tensor:
    """Return the words that address each stream's rows, `[streams, 3 + directions]`."""
    keys = [(*noise.weights_key(one.run_seed, one.name), one.generation) for one in streams]
    words = np.array([[*key, *directions] for key in keys], dtype=np.uint64)
    return torch.from_numpy(words.astype(np.int64)).to(device)  # as two's complement


@cache
def _table(device: torch.device) -> torch.Tensor:
    lower = noise.NORMAL_TABLE[: len(noise.NORMAL_TABLE) // 2]
    return torch.from_numpy(lower.copy()).to(device)
