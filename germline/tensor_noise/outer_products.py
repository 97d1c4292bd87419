"""Sums of outer products, one product after another: fp32 multiply, then add, never fused.

A matrix product is faster, but the order of its sums depends on the library and the thread count.
"""

import torch

SCRATCH = 1 << 17
"""Numbers of the sum in one block: they fit in the cache of a core (512 kB, twice)."""

SCRATCH_OF_GPU = 1 << 22
"""The same on a GPU (16 MB, twice): a block costs two launches per product."""


def outer_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sum the products block by block; see `tensor_noise.outer_sum`."""
    rows, columns = a.shape[1], b.shape[1]
    total = torch.zeros(rows, columns, device=a.device)
    scratch = SCRATCH if a.device.type == "cpu" else SCRATCH_OF_GPU
    at_once = max(1, scratch // columns)
    product = total.new_empty(min(at_once, rows), columns)
    for start in range(0, rows, at_once):
        block = total[start : start + at_once]
        into = product[: len(block)]
        for left, right in zip(a[:, start : start + at_once], b, strict=True):
            torch.mul(left[:, None], right, out=into)
            block.add_(into)
    return total
