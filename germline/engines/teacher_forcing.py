"""Prompts and completions packed for teacher forcing: one row per text, padded on the right.

In a causal model later tokens do not change earlier logits, so padding on the right needs no mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from germline.protocols import Texts


@dataclass(frozen=True)
class PackedBatch:
    """Rows of token ids `[members x examples, length]`, and the positions of their completions.

    Attributes:
        keep: number of last positions whose logits predict all completions.
        spans: for each row, the positions whose logits predict the tokens of its completion,
            counted from `length - keep`, or in `positions`.
        positions: those of the last `keep` whose logits are computed, `[rows, number]`; None: all.
    """

    rows: Tensor
    keep: int
    spans: tuple[slice, ...]
    positions: Tensor | None = None

    def at_completions(self) -> "PackedBatch":
        """Return the batch with logits at each row's completion alone.

        Those after the end of a shorter completion, or of the row, predict nothing.
        """
        sizes = [span.stop - span.start for span in self.spans]
        starts = torch.tensor([span.start for span in self.spans])
        positions = (starts[:, None] + torch.arange(max(sizes))).clamp(max=self.keep - 1)
        return replace(self, spans=tuple(map(slice, sizes)), positions=positions)


def pack_completions(
    prompts: Sequence[Sequence[int]], completions: Texts, padding_id: int
) -> PackedBatch:
    """Append every completion `[members][examples]` to its prompt."""
    pairs = [pair for row in completions for pair in zip(prompts, row, strict=True)]
    texts = [[*prompt, *one.tokens] for prompt, one in pairs]
    length = max(len(text) for text in texts)
    # The logits of a prompt's last token predict the first token of the completion.
    first = min(len(prompt) for prompt in prompts) - 1
    return PackedBatch(
        rows=torch.tensor([text + [padding_id] * (length - len(text)) for text in texts]),
        keep=length - first,
        spans=tuple(
            slice(len(prompt) - 1 - first, len(prompt) - 1 - first + len(one.tokens))
            for prompt, one in pairs
        ),
    )


def split_completions(completions: Texts, most: int) -> Iterator[tuple[slice, slice]]:
    """Cut completions `[members][examples]` into pieces of members and of examples.

    A piece has at most so many positions, unless a single completion is longer.
    """
    longest = max(len(one.tokens) for row in completions for one in row)
    texts = max(1, most // max(1, longest))
    width = min(texts, len(completions[0]))
    height = max(1, texts // width)
    for first in range(0, len(completions), height):
        members = slice(first, min(first + height, len(completions)))
        for place in range(0, len(completions[0]), width):
            yield members, slice(place, min(place + width, len(completions[0])))
