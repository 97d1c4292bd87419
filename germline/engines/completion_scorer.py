"""Log-probabilities of given completions: each member reads each distinct prompt once.

Where the logits themselves are asked for, `pack_completions` makes one row of every text.

The prompts are read into a key-value cache, whose rows are copied for the completions. The tokens
of the completions are appended, padded on the right. The rows of a member are ordered by length,
and rows of similar length are read together, so little padding is computed. The last token of a
prompt predicts the first token of its completions; the last token of a completion predicts nothing
and is not read.

Rejected: one packed sequence per member with a block mask. It saves a forward pass, but computes
attention between all completions of a member, which grows with the square of their tokens.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from germline.engines.decode import DecodeBatch
from germline.engines.prompt_batch import distinct_prompts, pad_prompts
from germline.types import Completion

Tokens = Sequence[int]
Texts = Sequence[Sequence[Tokens]]
"""The tokens of completions, `[members][columns]`."""

LOGITS_AT_ONCE = 1 << 27
"""Most logits in memory while texts are read: 0.5 GB in fp32, 880 tokens of Qwen2.5."""

TOKENS_AT_ONCE = 4096
"""Tokens that several members read at once. More take more memory than a generation, and were 2 %
faster on a CPU: scoring 128 members x 16 texts with nano took 2.11 s, and 2.07 s with 16,384."""

PASS_TOKENS = 256
"""A forward pass takes as much time as so many tokens, in addition to its own."""

MOST_BLOCKS = 128
"""Blocks of slots between which pieces are cut: trying every pair of cuts takes 2 ms."""

LOGITS_IN_CACHE = 1 << 16
"""On a CPU, log-probabilities are computed from about so many logits at a time."""


@dataclass(frozen=True)
class CompletionScorer:
    """Scores completions with one model."""

    model: PreTrainedModel
    padding_id: int

    def members_at_once(self, prompts: Sequence[Tokens], texts: Texts) -> int:
        """Return how many members read their texts in one batch."""
        distinct = sum(map(len, distinct_prompts(prompts)[0]))
        longest = max(sum(map(len, row)) for row in texts)
        return max(1, TOKENS_AT_ONCE // (distinct + longest))

    def score(self, prompts: Sequence[Tokens], texts: Texts) -> Tensor:
        """Return the log-probabilities of all tokens, member by member and column by column."""
        table = _Texts.of(texts, self.padding_id)
        found = torch.empty(int(table.sizes.sum()), device=self.model.device)
        for columns in _prompts_at_once(prompts, table.sizes):
            self._score(prompts, table, columns, found)
        return found

    def _score(
        self, prompts: Sequence[Tokens], table: "_Texts", columns: Sequence[int], found: Tensor
    ) -> None:
        """Score the texts of some columns, and write the numbers to their places in `found`."""
        distinct, prompt_of = distinct_prompts([prompts[column] for column in columns])
        padded = pad_prompts(distinct, self.padding_id)
        members = len(table.sizes)
        of_prompt = torch.arange(len(distinct)).repeat(members, 1)
        read = DecodeBatch.of(self.model, padded, of_prompt, torch.empty(of_prompt.numel(), 0))
        rows = table.longest_first(columns, prompt_of)
        _write(found, read.prefill(), *rows.first(len(distinct)))
        for slots in _pieces(rows.sizes.max(0) - 1, members, self._tokens_at_once):
            piece = _Texts(*(array[:, slots] for array in rows))
            width = int(piece.sizes.max()) - 1
            here = torch.from_numpy(piece.prompt_of)
            batch = DecodeBatch.of(self.model, padded, here, torch.empty(here.numel(), width))
            batch.take_from(read, (torch.arange(members)[:, None] * len(distinct) + here).flatten())
            step = max(1, self._tokens_at_once // here.numel())
            for begin in range(0, width, step):
                ids, predicted = piece.tokens(begin, min(begin + step, width))
                _write(found, batch.append(ids.to(self.model.device)).flatten(0, 1), *predicted)

    @property
    def _tokens_at_once(self) -> int:
        vocabulary = self.model.get_input_embeddings().num_embeddings
        return max(1, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // vocabulary))


Predicted = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of scored tokens: rows of the logits that predict them, their ids, places of the results."""


class _Texts(NamedTuple):
    """Texts `[members, columns]`, or of each member in an order of its own.

    Attributes:
        ids: padded tokens, `[members, columns, longest]`.
        starts: place of the result of the first token of each.
        prompt_of: index of its prompt.
    """

    ids: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray
    prompt_of: np.ndarray

    @classmethod
    def of(cls, texts: Texts, padding_id: int) -> "_Texts":
        sizes = np.array([[len(one) for one in row] for row in texts], dtype=np.int64)
        ids = np.full((*sizes.shape, sizes.max(initial=1)), padding_id, dtype=np.int64)
        every = chain.from_iterable(chain.from_iterable(texts))
        ids[np.arange(ids.shape[2]) < sizes[..., None]] = np.fromiter(every, dtype=np.int64)
        starts = (sizes.cumsum() - sizes.ravel()).reshape(sizes.shape)
        return cls(ids, sizes, starts, np.zeros_like(sizes))

    def longest_first(self, columns: Sequence[int], prompt_of: Sequence[int]) -> "_Texts":
        """Return the texts of some columns, of each member the longest ones first."""
        order = np.argsort(-self.sizes[:, columns], axis=1, kind="stable")
        where = np.arange(len(order))[:, None], np.asarray(columns)[order]
        ids, sizes, starts = (array[where] for array in (self.ids, self.sizes, self.starts))
        return _Texts(ids, sizes, starts, np.asarray(prompt_of)[order])

    def first(self, prompts: int) -> Predicted:
        """Return the first tokens, predicted by the last of the prompts `[members x prompts]`."""
        member, slot = np.nonzero(self.sizes)
        rows = member * prompts + self.prompt_of[member, slot]
        return rows, self.ids[member, slot, 0], self.starts[member, slot]

    def tokens(self, begin: int, end: int) -> tuple[Tensor, Predicted]:
        """Return tokens `[rows, end - begin]` of the texts, and those that they predict."""
        rows = self.ids.reshape(-1, self.ids.shape[-1])
        sizes, starts = self.sizes.reshape(-1, 1), self.starts.reshape(-1, 1)
        after = np.arange(begin + 1, end + 1)
        is_text = after < sizes
        next_tokens = rows[:, begin + 1 : end + 1][is_text]
        predicted = np.flatnonzero(is_text), next_tokens, (starts + after)[is_text]
        return torch.from_numpy(np.ascontiguousarray(rows[:, begin:end])), predicted


def log_normalizers(logits: Tensor) -> Tensor:
    """Return log sum exp of every row of logits `[rows, vocabulary]`, in fp32."""
    found = torch.empty(len(logits), device=logits.device)
    some = LOGITS_IN_CACHE if logits.device.type == "cpu" else LOGITS_AT_ONCE
    step = max(1, some // logits.shape[1])
    for begin in range(0, len(logits), step):
        rows = slice(begin, begin + step)
        found[rows] = logits[rows].float().logsumexp(1)
    return found


def _write(found: Tensor, logits: Tensor, *predicted: np.ndarray) -> None:
    rows, tokens, places = (torch.from_numpy(array).to(found.device) for array in predicted)
    found[places] = logits[rows, tokens].float() - log_normalizers(logits)[rows]


def _prompts_at_once(prompts: Sequence[Tokens], sizes: np.ndarray) -> Iterator[list[int]]:
    """Cut columns into parts of whole prompts, of about `TOKENS_AT_ONCE` tokens or one prompt."""
    distinct, prompt_of = distinct_prompts(prompts)
    tokens = np.array([len(prompt) for prompt in distinct]) * len(sizes)
    np.add.at(tokens, prompt_of, sizes.sum(0))
    parts: list[list[int]] = [[]]
    held = 0
    # Prompts of similar length have little padding.
    for prompt in sorted(range(len(distinct)), key=lambda place: len(distinct[place])):
        if parts[-1] and held + tokens[prompt] > TOKENS_AT_ONCE:
            parts.append([])
            held = 0
        held += int(tokens[prompt])
        parts[-1] += [column for column, own in enumerate(prompt_of) if own == prompt]
    return iter(parts)


def _pieces(lengths: np.ndarray, members: int, most: int) -> Iterator[slice]:
    """Cut slots into pieces so that the tokens and the padding of all take the least time.

    A slot reads `lengths` tokens of each member, the longest first; a piece of several blocks of
    slots has `most` tokens.
    """
    slots = int((lengths > 0).sum())
    block = -(-slots // MOST_BLOCKS)
    ends = [*range(0, slots, max(1, block)), slots]
    widths = [members * int(lengths[end]) for end in ends[:-1]]
    costs, cuts = [0.0], [0]
    for stop in range(1, len(ends)):
        costs.append(math.inf)
        cuts.append(0)
        for start in range(stop - 1, -1, -1):
            tokens = (ends[stop] - ends[start]) * widths[start]
            if tokens > most and stop - start > 1:
                break
            if costs[start] + tokens + PASS_TOKENS < costs[stop]:
                costs[stop], cuts[stop] = costs[start] + tokens + PASS_TOKENS, start
    path = [len(ends) - 1]
    while path[-1]:
        path.append(cuts[path[-1]])
    return (slice(ends[start], ends[stop]) for start, stop in pairwise(reversed(path)))


@dataclass(frozen=True)
class PackedBatch:
    """Rows of token ids `[members x examples, length]`, and the positions of their completions.

    Rows are padded on the right, which needs no mask: later tokens do not change earlier logits.

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
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Completion]], padding_id: int
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


class HeadInput:
    """The hidden states that the LM head of a model gets: contiguous, and of some positions.

    With `logits_to_keep`, the logits of the last positions alone, a model passes its head a slice
    `[rows, kept, hidden]` of `[rows, length, hidden]`. torch cannot view such a slice as a matrix
    and runs a batched product with the weight expanded to every row: in bf16 on a CPU the head is
    copied once per row (272 MB times 64 rows at the shape of Qwen2.5-0.5B), on a GPU it is read
    once per row. A contiguous input gives one product of two matrices.

    Rows with prompts of different lengths need logits at different positions. From the first to
    the last these can be many more than those of the completions: 64 rows with prompts of 500 to
    2,000 tokens have 30 GB of logits there, and 0.3 GB at 16 tokens each (bf16, 151,936 words).
    """

    def __init__(self, model: nn.Module) -> None:
        self._positions: Tensor | None = None
        head = model.get_output_embeddings()  # type: ignore[operator]
        if isinstance(head, nn.Module):
            head.register_forward_pre_hook(self._chosen)

    @contextmanager
    def only(self, positions: Tensor | None) -> Iterator[None]:
        """Keep these positions `[rows, kept]` of each row during a `with` block; None: all."""
        self._positions = positions
        try:
            yield
        finally:
            self._positions = None

    def _chosen(self, _head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy the hidden states unless they are contiguous, as in a decode step."""
        hidden, *others = inputs
        if self._positions is not None:
            where = self._positions[..., None].expand(-1, -1, hidden.shape[-1])
            hidden = hidden.gather(1, where)
        return hidden.contiguous(), *others
