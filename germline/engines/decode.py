"""Generate completions for one microbatch: prefill, then decode; finished rows leave the batch.

Rows are ordered by member, with the same number for each, because low-rank corrections act on
blocks of rows: the batch is a rectangle of members x slots. Finished rows are dropped once the
rectangle of the unfinished rows is clearly smaller. The result of a microbatch depends on the
microbatch alone, so scheduling cannot change a result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from germline.engines.kv_cache import BufferedCache, SlidingWindow
from germline.engines.prompt_batch import PaddedPrompts
from germline.engines.rows_in_progress import Detokenizer, RowsInProgress
from germline.engines.sampling import choose_tokens
from germline.types import Completion, Decoding

SMALLEST_BATCH = 16
"""Products of fewer rows give slightly different floats (measured), so small batches are filled."""

PREFILL_TOKENS = 2048
"""On a CPU, prompts are computed in pieces of about so many tokens, so that the activations between
two products fit in the cache."""

PREFILL_BYTES = 8 << 30
"""On a GPU, prompts are computed in pieces whose activations take about so many bytes: products of
so many rows are no faster when they are larger."""

LEAVE_AT = 0.8
"""Rows are dropped once the smaller rectangle has at most this share: copying must save time."""


@dataclass
class DecodeBatch:
    """The rows now in the batch, with their cache, mask and positions.

    Attributes:
        rows: `[members, slots]` row numbers, as at the start of the microbatch.
        mask: additive attention mask over the whole capacity, `[batch, 1, 1, capacity]`.
        position: position of the next token of each row, `[batch]`.
        sampling_noise: uniforms for seeded sampling, `[batch, max_new_tokens]`.
        window: of sliding-window layers, where texts are longer than it.
        filled: places of the cache taken.
    """

    model: PreTrainedModel
    rows: Tensor
    prompts: PaddedPrompts
    prompt_of: Tensor
    cache: BufferedCache
    mask: Tensor
    position: Tensor
    sampling_noise: Tensor
    window: SlidingWindow | None
    filled: int = 0

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        prompts: PaddedPrompts,
        prompt_of: Tensor,
        sampling_noise: Tensor,
    ) -> "DecodeBatch":
        """Begin a batch whose rows have the prompts `prompt_of` `[members, slots]`.

        The uniforms of the rows are `[members x slots, new tokens]`.
        """
        members, slots = prompt_of.shape
        new_tokens = sampling_noise.shape[1]
        prompt_of = prompt_of.flatten()
        prefix, width = len(prompts.prefix), prompts.rest.shape[1]
        seen = torch.ones(len(prompt_of), prefix + width + new_tokens, dtype=torch.bool)
        seen[:, prefix : prefix + width] = prompts.real[prompt_of]
        return cls(
            model=model,
            rows=torch.arange(len(prompt_of)).view(members, slots),
            prompts=prompts,
            prompt_of=prompt_of,
            cache=BufferedCache(seen.shape[1]),
            mask=_additive_mask(seen, model),
            position=torch.tensor(prompts.lengths)[prompt_of].to(model.device),
            sampling_noise=sampling_noise.to(model.device),
            window=SlidingWindow.of(model.config.get_text_config(), seen, model.device),
        )

    def prefill(self) -> Tensor:
        """Run the shared prefix once per member, then the rest; return the logits after them."""
        members, slots = self.rows.shape
        prefix = torch.tensor(self.prompts.prefix, dtype=torch.long)
        ids = self.prompts.rest[self.prompt_of]
        real = self.prompts.real[self.prompt_of]
        if members * len(prefix) >= SMALLEST_BATCH and slots > 1:
            positions = torch.arange(len(prefix)).expand(members, -1)
            self._forward(prefix.expand(members, -1), positions, self.mask[::slots])
            self.cache.take(torch.arange(members).repeat_interleave(slots).to(self.model.device))
        else:
            ids = torch.cat([prefix.expand(len(ids), -1), ids], dim=1)
            real = torch.cat([real.new_ones(len(ids), len(prefix)), real], dim=1)
        positions = (self.filled + real.long().cumsum(1) - 1).clamp_(min=0)
        return self._forward(ids, positions, self.mask)

    def prefill_distinct(self) -> Tensor:
        """Run each distinct prompt once per member; return the logits after the prompt of each row.

        All members have the same prompts. The cache of a prompt is copied to its rows.
        """
        members, slots = self.rows.shape
        of_slot = self.prompt_of[:slots]
        distinct = len(self.prompts.lengths)
        prompt_of = torch.arange(distinct).repeat(members, 1)
        read = DecodeBatch.of(
            self.model, self.prompts, prompt_of, self.sampling_noise.new_empty(prompt_of.numel(), 0)
        )
        logits = read.prefill()
        rows = (torch.arange(members)[:, None] * distinct + of_slot).flatten()
        self.take_from(read, rows)
        return logits[rows.to(logits.device)]

    def take_from(self, read: "DecodeBatch", rows: Tensor) -> None:
        """Begin with copies of the cache of a batch that has read the prompts of these `rows`."""
        self.cache = read.cache.taken(rows.to(self.mask.device), self.mask.shape[-1])
        self.filled = read.filled

    def append(self, ids: Tensor) -> Tensor:
        """Append tokens `[rows, width]`; return the logits after each, `[rows, width, vocabulary]`.

        In a causal model later tokens do not change earlier logits, so rows may end with padding.
        """
        width = ids.shape[1]
        positions = self.position[:, None] + torch.arange(width, device=self.position.device)
        spread = _causal(self.mask, self.filled, width)
        self.filled += width
        self.position = self.position + width
        logits: Tensor = self._read(self.model, ids, positions, spread).logits
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row and return the logits after it."""
        self.filled += 1
        mask = self.mask[..., : self.filled]
        logits = self._run(tokens[:, None], self.position[:, None], mask)
        self.position = self.position + 1
        return logits

    def keep(self, stay: Tensor, slots: int) -> Tensor:
        """Keep these rows, `slots` of each member; return them on the device of the batch."""
        self.rows = self.rows.flatten()[stay].view(-1, slots)
        stay = stay.to(self.model.device)
        self.cache.take(stay)
        self.mask = self.mask[stay]
        self.position = self.position[stay]
        self.sampling_noise = self.sampling_noise[stay]
        if self.window:
            self.window.keep(stay)
        return stay

    def go_on(
        self,
        stay: Tensor,
        slots: int,
        read: Tensor,
        answers: Sequence[Sequence[int]],
        sampling_noise: Tensor,
    ) -> Tensor:
        """Append the tokens of an answer to each row, and return the logits after them.

        The cache is packed: it keeps what belongs to the texts, without padding and without what
        was computed for rows after their turn had ended.

        Args:
            stay: rows of the batch that stay, `slots` of each member.
            slots: rows of each member.
            read: `[rows before, filled]`, False where a place of the cache is not of the text.
            answers: new tokens of each row that stays, at least one.
            sampling_noise: uniforms of the next turn, `[rows, new tokens]`.
        """
        device = self.model.device
        real = read[stay]
        lengths, width = real.sum(1), max(map(len, answers))
        longest = int(lengths.max())
        # Places of the text in order, behind padding: a stable sort moves the others to the front.
        places = real.long().argsort(dim=1, stable=True)[:, real.shape[1] - longest :]
        new = torch.tensor([len(answer) for answer in answers])
        columns = torch.arange(longest + width + sampling_noise.shape[1])
        seen = (columns >= longest - lengths[:, None]) & (columns < longest)
        seen |= columns >= longest + width - new[:, None]
        self.rows = self.rows.flatten()[stay].view(-1, slots)
        self.cache.repack(stay.to(device), places.to(device), seen.shape[1])
        self.mask = _additive_mask(seen, self.model)
        self.window = SlidingWindow.of(self.model.config.get_text_config(), seen, device)
        self.filled = longest
        self.position = (lengths + new).to(device)
        self.sampling_noise = sampling_noise.to(device)
        ids = torch.tensor([[0] * (width - len(answer)) + [*answer] for answer in answers])
        positions = lengths[:, None] + torch.arange(width) - (width - new[:, None])
        return self._forward(ids, positions.clamp_(min=0), self.mask)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Append new tokens `[rows, width]`, piece by piece, and return the logits after the last.

        The causal mask grows with the tokens of a text times those before them, so each piece has
        its own; the given one is of the same rows, over the whole capacity.
        """
        ids, positions = ids.to(mask.device), positions.to(mask.device)
        pieces = -(-ids.numel() // self._tokens_at_once())
        ends = np.linspace(0, ids.shape[1], min(pieces, ids.shape[1]) + 1).astype(int)[1:].tolist()
        begin = 0
        for end in ends[:-1]:
            piece, places = ids[:, begin:end].contiguous(), positions[:, begin:end]
            spread = _causal(mask, self.filled, end - begin)
            self._read(self.model.base_model, piece, places, spread)
            self.filled += end - begin
            begin = end
        spread = _causal(mask, self.filled, ids.shape[1] - begin)
        self.filled += ids.shape[1] - begin
        return self._run(ids[:, begin:].contiguous(), positions[:, begin:], spread)

    def _tokens_at_once(self) -> int:
        """Return how many tokens a piece of the prompts has, in all rows."""
        if self.mask.device.type == "cpu":
            return PREFILL_TOKENS
        config = self.model.config.get_text_config()
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        return prefill_tokens_on_gpu(
            config.hidden_size, inner, self.mask.shape[-1], self.mask.dtype.itemsize
        )

    def _run(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        output = self._read(self.model, ids, positions, mask, logits_to_keep=1)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _read(
        self, model: nn.Module, ids: Tensor, positions: Tensor, mask: Tensor, **kept: int
    ) -> Any:
        """Run the model, or the model without its head, on new tokens."""
        return model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self.window.masks(mask, positions) if self.window else mask,
            past_key_values=self.cache,
            use_cache=True,
            **kept,
        )


def prefill_tokens_on_gpu(hidden: int, inner: int, length: int, itemsize: int) -> int:
    """Return how many tokens have activations of `PREFILL_BYTES`.

    They follow from the widths of residual stream and MLP and the longest text, never from the
    memory that is free: the size of a product is part of its result.
    """
    return max(1, PREFILL_BYTES // ((3 * inner + 4 * hidden + 2 * length) * itemsize))


def rows_needed_first(
    needed: Sequence[Sequence[bool]], members: Sequence[int], width: int
) -> Tensor:
    """Choose `width` rows of each of the members that stay, those that are needed first.

    `needed` is `[members, slots]`; returns slots, `[members that stay, width]`.
    """
    return torch.tensor(
        [
            sorted(range(len(needed[member])), key=lambda slot: not needed[member][slot])[:width]
            for member in members
        ]
    )


def _additive_mask(seen: Tensor, model: PreTrainedModel) -> Tensor:
    """Return the mask of places of the cache that may be attended to, `[rows, 1, 1, capacity]`."""
    mask = torch.zeros(seen.shape, dtype=model.dtype)
    mask.masked_fill_(~seen, torch.finfo(model.dtype).min)
    return mask[:, None, None].to(model.device)


def _causal(mask: Tensor, start: int, width: int) -> Tensor:
    """Repeat a row mask for new positions, causal: `[batch, 1, width, start + width]`."""
    spread = mask[..., : start + width].repeat(1, 1, width, 1)
    later = torch.ones(width, width, dtype=torch.bool, device=mask.device).triu(1)
    spread[..., start:].masked_fill_(later, torch.finfo(mask.dtype).min)
    return spread


@dataclass(frozen=True)
class TokenDecoder:
    """Decodes with one model; when members are dropped, `members_left` gets those that stay."""

    model: PreTrainedModel
    detokenize: Detokenizer
    members_left: Callable[[Tensor], None]

    def generate(
        self,
        members: int,
        prompts: PaddedPrompts,
        prompt_of: Sequence[int],
        sampling_noise: Tensor,
        decoding: Decoding,
    ) -> list[list[Completion]]:
        """Complete every example for each of so many members in the model: `[members][examples]`.

        The prompts are those that differ, `prompt_of` the one of each example. The uniforms
        `[examples, max_new_tokens]` are the same for every member.
        """
        examples = len(prompt_of)
        slots = max(examples, -(-SMALLEST_BATCH // members))
        example_of = torch.tensor([slot if slot < examples else 0 for slot in range(slots)])
        rows = torch.tensor(prompt_of)[example_of].repeat(members, 1)
        is_repeated = examples > len(prompts.lengths)
        noise = sampling_noise[example_of].repeat(members, 1)
        batch = DecodeBatch.of(self.model, prompts, rows, noise)
        texts = RowsInProgress(self.detokenize, decoding, members * slots)
        texts.ignore([m * slots + s for m in range(members) for s in range(examples, slots)])
        logits = batch.prefill_distinct() if is_repeated else batch.prefill()
        self.write(batch, logits, texts, decoding)
        return texts.completions(members, [prompts.lengths[prompt] for prompt in prompt_of])

    def write(
        self,
        batch: DecodeBatch,
        logits: Tensor,
        texts: RowsInProgress,
        decoding: Decoding,
        *,
        keeps_rows: bool = False,
    ) -> None:
        """Generate until all texts end; per step, the host copies only the tokens.

        The logits are those after what the batch has read; finished rows may have to stay in it.
        """
        for step in range(decoding.max_new_tokens):
            tokens = choose_tokens(logits, batch.sampling_noise[:, step], decoding)
            texts.write(batch.rows.flatten().tolist(), tokens.tolist())
            if step + 1 == decoding.max_new_tokens or not texts.unfinished:
                break
            if not keeps_rows:
                tokens = self._drop_finished(batch, texts, tokens)
            logits = batch.step(tokens)

    def _drop_finished(self, batch: DecodeBatch, texts: RowsInProgress, tokens: Tensor) -> Tensor:
        """Shrink the rectangle where that saves time; return the tokens of the rows that stay."""
        unfinished = [[row in texts.unfinished for row in rows] for rows in batch.rows.tolist()]
        members = [m for m, flags in enumerate(unfinished) if any(flags)]
        width = max(sum(flags) for flags in unfinished)
        size = len(members) * width
        if size < SMALLEST_BATCH or size > LEAVE_AT * batch.rows.numel():
            return tokens
        slots = rows_needed_first(unfinished, members, width)
        before, slots_before = batch.rows.shape
        stay = batch.keep((torch.tensor(members)[:, None] * slots_before + slots).flatten(), width)
        if len(members) < before:
            self.members_left(stay[::width] // slots_before)
        return tokens[stay]
