"""Choose the next token of every row: greedy, or sampled with noise that all members share.

Sampling sorts every row of probabilities by size. Over the 151,936 tokens of Qwen2.5, `torch.sort`
took twice as long on a CPU as the rest of a decode step. `sort_descending` packs a probability and
its index into one integer, because numpy sorts integers with vector instructions:

    key = ~bits(probability) 2^32 + index

The bits of a non-negative fp32 number grow with the number, so ascending keys are descending
probabilities, and the index orders equal ones, as in a stable sort.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from germline import noise
from germline.types import Decoding, Example

NOT_A_NUMBER = 0x7FC00000
"""The bits of NaN without its sign. `torch.sort` puts every NaN above any number, whichever of the
several bit patterns arithmetic gave it."""


def draw_sampling_noise(examples: Sequence[Example], decoding: Decoding, turn: int = 0) -> Tensor:
    """Draw the uniforms of seeded sampling, `[examples, max_new_tokens]`, same for all members.

    Every turn of a conversation has uniforms of its own, and so has every sample of an example:
    sample n > 0 has the stream `<noise_stream> sample <n>`.
    """
    rows_of: dict[int, list[int]] = {}
    for row, example in enumerate(examples):
        rows_of.setdefault(example.sample, []).append(row)
    drawn = np.empty((len(examples), decoding.max_new_tokens))
    for sample, rows in rows_of.items():
        stream = f"{decoding.noise_stream} sample {sample}" if sample else decoding.noise_stream
        drawn[rows] = noise.sampling_uniforms(
            decoding.noise_seed,
            decoding.noise_generation,
            stream,
            [examples[row].index for row in rows],
            decoding.max_new_tokens,
            start=turn * decoding.max_new_tokens,
        )
    return torch.from_numpy(drawn)


def choose_tokens(logits: Tensor, sampling_noise: Tensor, decoding: Decoding) -> Tensor:
    """Return one token id per row of logits `[rows, vocabulary]`.

    Sampling inverts the cumulative distribution at `sampling_noise`, `[rows]` in (0, 1), so members
    with the same distribution draw the same token: differences in reward come from the weights.
    """
    if decoding.temperature == 0:
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            # The same token, ties and NaN included; a thread takes a sixth of the time.
            return torch.from_numpy(logits.numpy().argmax(-1))
        # In bf16 on a CPU, argmax of a vocabulary of 150,000 takes five times as long.
        return logits.max(-1).indices
    probabilities = torch.softmax(logits.float() / decoding.temperature, dim=-1)
    ordered, tokens = sort_descending(probabilities)
    mass = ordered.cumsum(-1)
    # The smallest set of likely tokens whose mass reaches top_p; at least one.
    kept = (mass - ordered) < decoding.top_p
    total = (ordered * kept).sum(-1, keepdim=True)
    target = sampling_noise.to(total)[:, None] * total
    place = (mass < target).sum(-1, keepdim=True)
    # Extreme weights give NaN logits; such a member must write some token, too.
    place = torch.minimum(place, kept.sum(-1, keepdim=True) - 1).clamp_(min=0)
    return tokens.gather(-1, place)[:, 0]


def sort_descending(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `values.sort(dim=-1, descending=True, stable=True)` returns, bit for bit.

    No value may be negative; NaN is allowed.
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
