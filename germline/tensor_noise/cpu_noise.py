"""Weight noise on a CPU: `germline.noise`, in pieces that fit the cache, on several threads.

The functions are those of `germline.tensor_noise`; their last argument, a device, is not used.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32

from germline import noise

PIECE = 1 << 16
"""Samples of a piece: the memory of one direction (1.2 MB) fits in the cache of a core."""

SERIAL = PIECE // 2
"""Most numbers of one torch operation: larger ones run on torch's threads besides those here."""

SCRATCH = {"cpu": 1 << 17, "cuda": 1 << 22}
"""Numbers of an outer sum in one block (512 kB and 16 MB, twice): they stay in the cache of a core;
on a GPU a block costs two launches per product."""


@dataclass(frozen=True, slots=True)
class NoiseStream:
    """The noise of one tensor in one generation; see `germline.noise` for its construction.

    Attributes:
        name: canonical Hugging Face name of the tensor, or of a factor of it.
    """

    run_seed: int
    generation: int
    name: str


def normals(
    stream: NoiseStream, directions: Sequence[int], count: int, start: int, _: torch.device
) -> torch.Tensor:
    """Draw rows."""
    drawn = np.empty((len(directions), count), dtype=np.float32)
    if count <= PIECE or torch.get_num_threads() == 1:
        _draw(stream, directions, drawn, start)
        return torch.from_numpy(drawn)

    def draw(first: int) -> None:
        for row, direction in zip(drawn, directions, strict=True):
            _draw(stream, (direction,), row[None, first : first + PIECE], start + first)

    _in_threads(draw, range(0, count, PIECE))
    return torch.from_numpy(drawn)


def concatenated_noise(
    run_seed: int,
    generation: int,
    directions: Sequence[int],
    sizes: Mapping[str, int],
    _: torch.device,
) -> torch.Tensor:
    """Draw many tensors."""
    return torch.from_numpy(noise.concatenated_noise(run_seed, generation, directions, sizes))


def weighted_sum(
    stream: NoiseStream,
    weights: Sequence[tuple[int, float]],
    count: int,
    start: int,
    _: torch.device,
) -> torch.Tensor:
    """Sum rows in order, piece by piece."""
    total = np.zeros(count, dtype=np.float32)

    def add(first: int) -> None:
        part = total[first : first + PIECE]
        at_once = min(len(weights), max(1, PIECE // len(part)))
        rows = np.empty((at_once, len(part)), dtype=np.float32)
        for begin in range(0, len(weights), at_once):
            some = weights[begin : begin + at_once]
            _draw(stream, [direction for direction, _ in some], rows[: len(some)], start + first)
            for row, (_, coefficient) in zip(rows, some, strict=False):
                # Two operations, each rounded: see optimizers/fp32_arithmetic.py.
                np.multiply(row, np.float32(coefficient), out=row)
                np.add(part, row, out=part)

    _in_threads(add, range(0, count, PIECE))
    return torch.from_numpy(total)


def outer_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sum outer products block by block, on the device of the factors."""
    rows, columns = a.shape[1], b.shape[1]
    total = torch.zeros(rows, columns, device=a.device)
    at_once = max(1, SCRATCH.get(a.device.type, SCRATCH["cuda"]) // columns)
    product = total.new_empty(min(at_once, rows), columns)
    for start in range(0, rows, at_once):
        block = total[start : start + at_once]
        into = product[: len(block)]
        for left, right in zip(a[:, start : start + at_once], b, strict=True):
            torch.mul(left[:, None], right, out=into)
            block.add_(into)
    return total


def write_perturbed(
    stream: NoiseStream, direction: int, scale: float, center: torch.Tensor, out: torch.Tensor
) -> None:
    """Write center + scale * noise into flat `out`."""

    def write(first: int) -> None:
        parts = [tensor[first : first + PIECE] for tensor in (center, out)]
        drawn = np.empty((1, len(parts[0])), dtype=np.float32)
        _draw(stream, (direction,), drawn, first)
        flat = (torch.from_numpy(drawn[0]), *parts)
        for part, start, into in zip(*(one.split(SERIAL) for one in flat), strict=True):
            into.copy_(part.mul_(scale).add_(start))

    _in_threads(write, range(0, len(center), PIECE))


def _draw(
    stream: NoiseStream,
    directions: Sequence[int],
    into: Float32[np.ndarray, "directions count"],
    start: int,
) -> None:
    count = into.shape[1]
    noise.draw_noise_rows(
        stream.run_seed, stream.generation, directions, stream.name, count, start, out=into
    )


def _in_threads(work: Callable[[int], None], pieces: Sequence[int]) -> None:
    """Work on independent pieces in any order: drawing and arithmetic release the GIL."""
    threads = min(torch.get_num_threads(), len(pieces))
    if threads == 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, pieces):
            pass
