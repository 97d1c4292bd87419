"""Sort probabilities on a CPU as `torch.sort` does, several times faster.

Sampling sorts every row of probabilities by size. Over the 151,936 tokens of Qwen2.5 that took
torch twice as long as all the rest of a decode step. Here a probability and its place are packed
into one integer, and numpy sorts integers with vector instructions:

    key = ~bits(probability) 2^32 + place

The bits of a non-negative fp32 number grow with the number, so ascending keys are descending
probabilities, and places put equal ones in order, as in a stable sort.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

NOT_A_NUMBER = 0x7FC00000
"""The bits of NaN without its sign. Arithmetic leaves several NaNs, which are one to `torch.sort`:
greater than any number."""


def sort_descending(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `values.sort(dim=-1, descending=True, stable=True)` returns, bit for bit.

    Args:
        values: fp32 `[rows, columns]`, none of them negative; NaN is allowed.

    Returns:
        The sorted values, and from which column each comes.
    """
    if values.device.type != "cpu":
        ordered, columns = values.sort(dim=-1, descending=True, stable=True)
        return ordered, columns
    keys = values.contiguous().view(torch.int32).long()
    keys.bitwise_and_(0x7FFFFFFF).clamp_(max=NOT_A_NUMBER)
    keys.bitwise_not_().bitwise_left_shift_(32).bitwise_or_(torch.arange(values.shape[1]))
    _sort_rows(keys.numpy())
    columns = keys & 0xFFFFFFFF
    ordered = keys.bitwise_right_shift_(32).bitwise_not_().int().view(torch.float32)
    return ordered, columns


def _sort_rows(keys: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> None:
    """Sort each row in place, in as many threads as torch has."""
    parts = min(torch.get_num_threads(), len(keys))
    if parts <= 1:
        keys.sort(axis=-1)
        return
    with ThreadPoolExecutor(parts) as threads:
        list(threads.map(lambda rows: rows.sort(axis=-1), np.array_split(keys, parts)))
