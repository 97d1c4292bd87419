"""Conversations of several turns in one batch: all rows step together and keep their cache.

In each turn the batch reads the tokens of the answers only. Rows whose conversation has ended leave
between two turns; within a turn finished rows stay, because their cache is needed again, and are
computed along until the last row of the turn is finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from germline.engines.decode import TokenDecoder
from germline.engines.decode_batch import SMALLEST_BATCH, DecodeBatch
from germline.engines.prompt_batch import PromptEncoder, pad_prompts
from germline.engines.sampling import draw_sampling_noise
from germline.protocols import Conversations, Reply
from germline.types import Completion, Decoding, Example

FILLER = (0,)
"""What rows read whose conversation has ended: some token."""


@dataclass
class ConversationBatch:
    """The conversations of some members in one batch.

    Attributes:
        prompts: first messages, `[members][rows]`.
        answer: called with the completions of a turn.
    """

    decoder: TokenDecoder
    encoder: PromptEncoder
    prompts: Conversations
    decoding: Decoding
    answer: Reply
    _examples: dict[int, Example] = field(default_factory=dict)
    _tokens: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """Generate turn after turn until every conversation has ended."""
        with self.decoder.fused.applied():
            batch, live = self._begin()
            logits, turn = batch.prefill(), 0
            while True:
                start = batch.filled
                texts = self.decoder.no_texts(self.decoding, int(batch.rows.max()) + 1)
                texts.ignore(sorted(texts.unfinished - live))
                self.decoder.write(batch, logits, texts, self.decoding, keeps_rows=True)
                written = {row: texts.completion(row, self._tokens[row]) for row in sorted(live)}
                unread = self._answers(written, batch.filled - start)
                if not unread:
                    return
                live, turn = set(unread), turn + 1
                logits = self._go_on(batch, written, unread, start, turn)

    def _begin(self) -> tuple[DecodeBatch, set[int]]:
        """Make the batch of all first messages; return it and the rows that are conversations."""
        members = len(self.prompts)
        slots = max(max(map(len, self.prompts)), -(-SMALLEST_BATCH // members))
        filler = next(row[0] for row in self.prompts if row)
        self._slots, live = slots, set()
        for member, examples in enumerate(self.prompts):
            for slot in range(slots):
                row = member * slots + slot
                self._examples[row] = examples[slot] if slot < len(examples) else filler
                if slot < len(examples):
                    live.add(row)
        encoded = {row: self.encoder.encode(one) for row, one in self._examples.items()}
        self._tokens = {row: len(ids) for row, ids in encoded.items()}
        self.encoder.check_length(max(self._tokens.values()) + self.decoding.max_new_tokens)
        different = {tuple(ids): ids for ids in encoded.values()}
        number = {ids: place for place, ids in enumerate(different)}
        prompt_of = torch.tensor([number[tuple(ids)] for ids in encoded.values()])
        padded = pad_prompts(list(different.values()), self.encoder.padding_id)
        noise = self._noise(list(encoded), turn=0)
        return self.decoder.begin(padded, prompt_of.view(members, slots), noise), live

    def _answers(self, written: dict[int, Completion], steps: int) -> dict[int, list[int]]:
        """Return the tokens that each conversation goes on with; those without any have ended.

        Args:
            written: completions of this turn.
            steps: tokens of this turn that the batch has read; the last one may be missing.
        """
        places = [self._place(row) for row in written]
        unread: dict[int, list[int]] = {}
        full: list[int] = []
        for row, message in zip(written, self.answer(places, list(written.values())), strict=True):
            if message is None:
                continue
            completion = written[row]
            answer = self.encoder.encode_answer(self._examples[row], completion, message)
            self._tokens[row] += len(completion.tokens) + len(answer)
            limit = self.encoder.context_tokens
            if limit is not None and self._tokens[row] + self.decoding.max_new_tokens > limit:
                full.append(row)
            else:
                unread[row] = [*completion.tokens[steps:], *answer]
        if full:
            self.answer(
                [self._place(row) for row in full],
                [Completion("", (), "context", self._tokens[row]) for row in full],
            )
        return unread

    def _go_on(
        self,
        batch: DecodeBatch,
        written: dict[int, Completion],
        unread: dict[int, list[int]],
        start: int,
        turn: int,
    ) -> Tensor:
        """Let the batch read the answers, without the rows that are not needed any more."""
        read = (batch.mask[:, 0, 0, : batch.filled] == 0).cpu()
        for place, row in enumerate(batch.rows.flatten().tolist()):
            if row in written:
                read[place, start + len(written[row].tokens) :] = False
        members, slots = self._rectangle(batch, unread)
        stay = (torch.tensor(members)[:, None] * batch.rows.shape[1] + slots).flatten()
        if len(members) < len(batch.rows):
            self.decoder.members_left(torch.tensor(members, device=batch.position.device))
        rows = batch.rows.flatten()[stay].tolist()
        answers = [unread.get(row, FILLER) for row in rows]
        return batch.go_on(stay, slots.shape[1], read, answers, self._noise(rows, turn))

    def _rectangle(
        self, batch: DecodeBatch, unread: dict[int, list[int]]
    ) -> tuple[list[int], Tensor]:
        """Choose the members that stay, and as many rows of each: `[members, slots]`."""
        live = [[row in unread for row in rows] for rows in batch.rows.tolist()]
        members = [member for member, flags in enumerate(live) if any(flags)]
        width = max(max(map(sum, live)), -(-SMALLEST_BATCH // len(members)))
        if width > batch.rows.shape[1]:  # too few rows would be left
            members, width = list(range(len(live))), batch.rows.shape[1]
        slots = [
            sorted(range(len(live[m])), key=lambda slot: not live[m][slot])[:width] for m in members
        ]
        return members, torch.tensor(slots)

    def _noise(self, rows: Sequence[int], turn: int) -> Tensor:
        """Draw the sampling noise of rows; those of one example have the same."""
        examples = {self._examples[row].index: self._examples[row] for row in rows}
        drawn = draw_sampling_noise(list(examples.values()), self.decoding, turn)
        place = {index: number for number, index in enumerate(examples)}
        return drawn[torch.tensor([place[self._examples[row].index] for row in rows])]

    def _place(self, row: int) -> tuple[int, int]:
        return row // self._slots, row % self._slots
