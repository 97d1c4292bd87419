"""Generate completions for one microbatch: prefill, then decode; finished rows leave the batch.

Rows are ordered by member, with the same number for each, because low-rank corrections act on
blocks of rows: the batch is a rectangle of members x slots. Finished rows are dropped once the
rectangle of the unfinished rows is clearly smaller. The result of a microbatch depends on the
microbatch alone, so scheduling cannot change a result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from germline.engines.cpu_kernels import FusedDecoder
from germline.engines.cuda_graph import FixedShapeSteps
from germline.engines.detokenize import Detokenizer
from germline.engines.kv_cache import BufferedCache
from germline.engines.prompt_batch import PaddedPrompts
from germline.engines.sampling import choose_tokens
from germline.engines.sliding_window import SlidingWindow
from germline.types import Completion, Decoding, Finish

LEAVE_AT = 0.8
"""Rows are dropped once the smaller rectangle has at most this share: copying must save time."""

SMALLEST_BATCH = 16
"""Products of fewer rows give slightly different floats (measured), so small batches are filled."""

PREFILL_TOKENS = 2048
"""On a CPU, prompts are computed in pieces of about so many tokens, so that the activations between
two products fit in the cache."""


@dataclass(frozen=True)
class TokenDecoder:
    """Decodes with one model.

    Attributes:
        model: computes the members of the batch.
        fused: the faster modules of the model.
        detokenize: turns token ids into text.
        end_ids: tokens that end a text.
        members_left: called with the members that stay when others are dropped.
        fixed_steps: whether decode steps have fixed shapes, for CUDA graphs.
    """

    model: PreTrainedModel
    fused: FusedDecoder
    detokenize: Detokenizer
    end_ids: frozenset[int]
    members_left: Callable[[Tensor], None]
    fixed_steps: bool = False

    def generate(
        self, members: int, prompts: PaddedPrompts, sampling_noise: Tensor, decoding: Decoding
    ) -> list[list[Completion]]:
        """Complete every prompt for each member in the model: `[members][examples]`.

        Args:
            members: number of members in the model.
            prompts: the examples of the microbatch.
            sampling_noise: `[examples, max_new_tokens]` uniforms for seeded sampling, the same for
                every member.
            decoding: settings of choosing tokens.
        """
        examples = len(prompts.lengths)
        slots = max(examples, -(-SMALLEST_BATCH // members))
        example_of = torch.tensor([slot if slot < examples else 0 for slot in range(slots)])
        batch = _Batch.of(self.model, members, example_of, prompts, sampling_noise[example_of])
        batch.has_fixed_steps = self.fixed_steps
        texts = _Texts(self, decoding, members * slots)
        texts.ignore([m * slots + s for m in range(members) for s in range(examples, slots)])
        with self.fused.applied():
            self._write(batch, texts, decoding)
        return texts.completions(members, prompts.lengths)

    def _write(self, batch: "_Batch", texts: "_Texts", decoding: Decoding) -> None:
        """Generate until all texts end; per step, the host copies only the tokens."""
        logits = batch.prefill()
        for step in range(decoding.max_new_tokens):
            tokens = choose_tokens(logits, batch.sampling_noise[:, step], decoding)
            texts.write(batch.rows.flatten().tolist(), tokens.tolist())
            if step + 1 == decoding.max_new_tokens or not texts.unfinished:
                break
            tokens = self._drop_finished(batch, texts, tokens)
            logits = batch.step(tokens)

    def _drop_finished(self, batch: "_Batch", texts: "_Texts", tokens: Tensor) -> Tensor:
        """Shrink the rectangle where that saves time; return the tokens of the rows that stay."""
        unfinished = [[row in texts.unfinished for row in rows] for rows in batch.rows.tolist()]
        members = [m for m, flags in enumerate(unfinished) if any(flags)]
        width = max(sum(flags) for flags in unfinished)
        size = len(members) * width
        if size < SMALLEST_BATCH or size > LEAVE_AT * batch.rows.numel():
            return tokens
        slots = torch.tensor(
            [
                sorted(range(len(unfinished[m])), key=lambda s: not unfinished[m][s])[:width]
                for m in members
            ]
        )
        before, slots_before = batch.rows.shape
        stay = batch.keep((torch.tensor(members)[:, None] * slots_before + slots).flatten(), width)
        if len(members) < before:
            self.members_left(stay[::width] // slots_before)
        return tokens[stay]


@dataclass
class _Batch:
    """The rows now in the batch, with their cache, mask and positions.

    Attributes:
        rows: `[members, slots]` row numbers, as at the start of the microbatch.
        mask: additive attention mask over the whole capacity, `[batch, 1, 1, capacity]`.
        position: position of the next token of each row, `[batch]`.
        sampling_noise: uniforms for seeded sampling, `[batch, max_new_tokens]`.
        window: of sliding-window layers, where texts are longer than it.
        filled: places of the cache taken.
        has_fixed_steps: whether steps are one program of fixed shapes.
    """

    model: PreTrainedModel
    rows: Tensor
    prompts: PaddedPrompts
    example_of: Tensor
    cache: BufferedCache
    mask: Tensor
    position: Tensor
    sampling_noise: Tensor
    window: SlidingWindow | None
    filled: int = 0
    has_fixed_steps: bool = False
    _steps: FixedShapeSteps | None = None

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        members: int,
        example_of: Tensor,
        prompts: PaddedPrompts,
        sampling_noise: Tensor,
    ) -> "_Batch":
        slots, new_tokens = sampling_noise.shape
        example_of = example_of.repeat(members)
        prefix, width = len(prompts.prefix), prompts.rest.shape[1]
        seen = torch.ones(len(example_of), prefix + width + new_tokens, dtype=torch.bool)
        seen[:, prefix : prefix + width] = prompts.real[example_of]
        mask = torch.zeros(seen.shape, dtype=model.dtype)
        mask.masked_fill_(~seen, torch.finfo(model.dtype).min)
        return cls(
            model=model,
            rows=torch.arange(len(example_of)).view(members, slots),
            prompts=prompts,
            example_of=example_of,
            cache=BufferedCache(seen.shape[1]),
            mask=mask[:, None, None].to(model.device),
            position=torch.tensor(prompts.lengths)[example_of].to(model.device),
            sampling_noise=sampling_noise.repeat(members, 1).to(model.device),
            window=SlidingWindow.of(model.config.get_text_config(), seen, model.device),
        )

    def prefill(self) -> Tensor:
        """Run the shared prefix once per member, then the rest; return the logits after them."""
        members, slots = self.rows.shape
        prefix = torch.tensor(self.prompts.prefix, dtype=torch.long)
        ids = self.prompts.rest[self.example_of]
        real = self.prompts.real[self.example_of]
        if members * len(prefix) >= SMALLEST_BATCH and slots > 1:
            positions = torch.arange(len(prefix)).expand(members, -1)
            self._forward(
                prefix.expand(members, -1), positions, _causal(self.mask[::slots], 0, len(prefix))
            )
            self.cache.take(torch.arange(members).repeat_interleave(slots).to(self.model.device))
        else:
            ids = torch.cat([prefix.expand(len(ids), -1), ids], dim=1)
            real = torch.cat([real.new_ones(len(ids), len(prefix)), real], dim=1)
        start = self.filled
        positions = (start + real.long().cumsum(1) - 1).clamp_(min=0)
        return self._forward(ids, positions, _causal(self.mask, start, ids.shape[1]))

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row and return the logits after it."""
        if self.has_fixed_steps:
            logits = self._fixed_step(tokens)
        else:
            mask = self.mask[..., : self.filled + 1]
            logits = self._forward(tokens[:, None], self.position[:, None], mask)
        self.position = self.position + 1
        return logits

    def _fixed_step(self, tokens: Tensor) -> Tensor:
        if self._steps is None:
            self._steps = FixedShapeSteps(
                self._run, self.cache, self.mask, self.position, self.filled
            )
        self.filled += 1
        return self._steps(tokens)

    def keep(self, stay: Tensor, slots: int) -> Tensor:
        """Keep these rows, `slots` of each member; return them on the device of the batch."""
        self.rows = self.rows.flatten()[stay].view(-1, slots)
        stay = stay.to(self.model.device)
        self.cache.take(stay)
        self._steps = None
        self.mask = self.mask[stay]
        self.position = self.position[stay]
        self.sampling_noise = self.sampling_noise[stay]
        if self.window:
            self.window.keep(stay)
        return stay

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Append new tokens, piece by piece, and return the logits after the last."""
        device = self.mask.device
        ids, positions = ids.to(device), positions.to(device)
        pieces = -(-ids.numel() // PREFILL_TOKENS) if device.type == "cpu" else 1
        ends = np.linspace(0, ids.shape[1], min(pieces, ids.shape[1]) + 1).astype(int)[1:]
        start, begin = self.filled, 0
        for end in ends[:-1]:
            piece, places = ids[:, begin:end].contiguous(), positions[:, begin:end]
            self._read(self.model.base_model, piece, places, mask[:, :, begin:end, : start + end])
            begin = int(end)
        self.filled += ids.shape[1]
        return self._run(ids[:, begin:].contiguous(), positions[:, begin:], mask[:, :, begin:])

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


def _causal(mask: Tensor, start: int, width: int) -> Tensor:
    """Repeat a row mask for new positions, causal: `[batch, 1, width, start + width]`."""
    spread = mask[..., : start + width].repeat(1, 1, width, 1)
    later = torch.ones(width, width, dtype=torch.bool, device=mask.device).triu(1)
    spread[..., start:].masked_fill_(later, torch.finfo(mask.dtype).min)
    return spread


@dataclass
class _Row:
    """The tokens of one row."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish = "length"
    text: str | None = None


class _Texts:
    """The tokens of all rows, and which rows are unfinished."""

    def __init__(self, decoder: TokenDecoder, decoding: Decoding, rows: int) -> None:
        self.decoder = decoder
        self.stop = decoding.stop
        self.rows = [_Row() for _ in range(rows)]
        self.unfinished = set(range(rows))
        self._decoded: dict[tuple[int, ...], str] = {}

    def ignore(self, rows: Sequence[int]) -> None:
        """Mark rows that only fill the batch as finished."""
        self.unfinished.difference_update(rows)

    def write(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Append a token to every unfinished row, and finish those that end."""
        for number, token in zip(rows, tokens, strict=True):
            if number not in self.unfinished:
                continue
            row = self.rows[number]
            row.tokens.append(token)
            if token in self.decoder.end_ids:
                self._finish(number, "eos")
            elif self.stop:
                self._stop_at_string(number)

    def completions(self, members: int, prompt_lengths: Sequence[int]) -> list[list[Completion]]:
        """Return `[members][examples]`, without the rows that fill the batch."""
        slots = len(self.rows) // members
        return [
            [
                self._completion(self.rows[member * slots + example], length)
                for example, length in enumerate(prompt_lengths)
            ]
            for member in range(members)
        ]

    def _completion(self, row: _Row, prompt_tokens: int) -> Completion:
        # The tokenizer drops special tokens only, and an end token need not be special.
        written = row.tokens[:-1] if row.finish == "eos" else row.tokens
        text = self._decode(written) if row.text is None else row.text
        return Completion(text, tuple(row.tokens), row.finish, prompt_tokens)

    def _stop_at_string(self, number: int) -> None:
        text = self._decode(self.rows[number].tokens)
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        if places:
            self.rows[number].text = text[: min(places)]
            self._finish(number, "stop")

    def _finish(self, number: int, finish: Finish) -> None:
        self.rows[number].finish = finish
        self.unfinished.discard(number)

    def _decode(self, tokens: Sequence[int]) -> str:
        """Decode each text once: members often generate the same text."""
        key = tuple(tokens)
        if key not in self._decoded:
            self._decoded[key] = self.decoder.detokenize(key)
        return self._decoded[key]
