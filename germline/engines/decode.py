"""Generate completions for one microbatch: prefill, then decode; finished rows leave the batch.

Rows are ordered by member, with the same number for each, because low-rank corrections act on
blocks of rows: the batch is a rectangle of members x slots. Finished rows are dropped once the
rectangle of the unfinished rows is clearly smaller. The result of a microbatch depends on the
microbatch alone, so scheduling cannot change a result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from germline.engines.cpu_kernels import FusedDecoder
from germline.engines.decode_batch import SMALLEST_BATCH, DecodeBatch, rows_needed_first
from germline.engines.prompt_batch import PaddedPrompts
from germline.engines.rows_in_progress import Detokenizer, RowsInProgress
from germline.engines.sampling import choose_tokens
from germline.types import Completion, Decoding

LEAVE_AT = 0.8
"""Rows are dropped once the smaller rectangle has at most this share: copying must save time."""


@dataclass(frozen=True)
class TokenDecoder:
    """Decodes with one model, whose faster modules are `fused`.

    When others are dropped, `members_left` is called with the members that stay.
    """

    model: PreTrainedModel
    fused: FusedDecoder
    detokenize: Detokenizer
    end_ids: frozenset[int]
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
        with self.fused.applied():
            noise = sampling_noise[example_of].repeat(members, 1)
            batch = DecodeBatch.of(self.model, prompts, rows, noise)
            texts = self.no_texts(decoding, members * slots)
            texts.ignore([m * slots + s for m in range(members) for s in range(examples, slots)])
            logits = batch.prefill_distinct() if is_repeated else batch.prefill()
            self.write(batch, logits, texts, decoding)
        return texts.completions(members, [prompts.lengths[prompt] for prompt in prompt_of])

    def no_texts(self, decoding: Decoding, rows: int) -> RowsInProgress:
        """Return the texts of rows before their first token."""
        return RowsInProgress(self.detokenize, self.end_ids, decoding, rows)

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
