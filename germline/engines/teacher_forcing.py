"""Texts laid out to be read token by token: prompt and completion in a row, padded on the right.

A causal model sees nothing that comes after a token, so padding on the right changes no logits and
needs no mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from germline.types import Completion


@dataclass(frozen=True)
class PackedBatch:
    """Rows of token ids, member by member, and where their completions are.

    Attributes:
        rows: `[members x examples, length]`.
        keep: how many positions at the end are enough to see every completion coming.
        spans: of each row, the positions whose logits are those of its completion's tokens,
            counted from `length - keep`.
    """

    rows: Tensor
    keep: int
    spans: tuple[slice, ...]


def pack_completions(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Completion]],
    padding_id: int,
) -> PackedBatch:
    """Put every completion `[members][examples]` behind its prompt.

    Args:
        prompts: token ids of each example's prompt, at least one each.
        completions: what each member wrote.
        padding_id: a token the model knows.
    """
    pairs = [pair for row in completions for pair in zip(prompts, row, strict=True)]
    texts = [[*prompt, *one.tokens] for prompt, one in pairs]
    length = max(len(text) for text in texts)
    # The last token of a prompt is where the first one of its completion is foretold.
    first = min(len(prompt) for prompt in prompts) - 1
    return PackedBatch(
        rows=torch.tensor([text + [padding_id] * (length - len(text)) for text in texts]),
        keep=length - first,
        spans=tuple(
            slice(len(prompt) - 1 - first, len(prompt) - 1 - first + len(one.tokens))
            for prompt, one in pairs
        ),
    )


def split_completions(
    completions: Sequence[Sequence[Completion]], most: int
) -> Iterator[tuple[slice, slice]]:
    """Cut completions `[members][examples]` into pieces of members and of examples.

    A piece has at most so many positions of tokens, where one completion alone has not more.
    """
    longest = max(len(one.tokens) for row in completions for one in row)
    texts = max(1, most // max(1, longest))
    width = min(texts, len(completions[0]))
    height = max(1, texts // width)
    for first in range(0, len(completions), height):
        members = slice(first, min(first + height, len(completions)))
        for place in range(0, len(completions[0]), width):
            yield members, slice(place, min(place + width, len(completions[0])))
