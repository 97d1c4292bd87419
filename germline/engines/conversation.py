"""Conversations of several turns: examples, answers and tokens so far, and the batch of a model.

In each turn the batch reads the tokens of the answers only; all rows step together and keep their
cache. Rows whose conversation has ended leave between two turns; within a turn finished rows stay,
because their cache is needed again, and are computed along until the last row is finished.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from germline.engines.decode import SMALLEST_BATCH, DecodeBatch, TokenDecoder, rows_needed_first
from germline.engines.prompt_batch import PromptEncoder, distinct_prompts, pad_prompts
from germline.engines.rows_in_progress import RowsInProgress
from germline.engines.sampling import draw_sampling_noise
from germline.protocols import Conversations, Reply
from germline.types import Completion, Decoding, Example

FILLER = (0,)
"""What rows read whose conversation has ended: some token."""

Place = tuple[int, int]
"""(member, row) of a conversation."""


@dataclass
class ConversationTurns:
    """Conversations by their place, and how many tokens each has before the model's next turn.

    `reply` is called with the completions of a turn.
    """

    encoder: PromptEncoder
    decoding: Decoding
    reply: Reply
    examples: dict[Place, Example]
    tokens: dict[Place, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, encoder: PromptEncoder, prompts: Conversations, decoding: Decoding, reply: Reply
    ) -> "ConversationTurns":
        """Begin the conversations `[members][rows]`; the first messages must fit the context."""
        examples = {
            (member, row): example
            for member, rows in enumerate(prompts)
            for row, example in enumerate(rows)
        }
        tokens = {place: len(encoder.encode(example)) for place, example in examples.items()}
        encoder.check_length(max(tokens.values()), decoding.max_new_tokens)
        return cls(encoder, decoding, reply, examples, tokens)

    def answers(self, written: Mapping[Place, Completion]) -> dict[Place, list[int]]:
        """Return the tokens that answer this turn; conversations without any have ended."""
        answers: dict[Place, list[int]] = {}
        full: list[Place] = []
        messages = self.reply([*written], [*written.values()])
        for (place, completion), message in zip(written.items(), messages, strict=True):
            if message is None:
                continue
            self.tokens[place] += len(completion.tokens)
            answer = self.encoder.encode_answer(self.examples[place], completion, message)
            self.tokens[place] += len(answer)
            limit = self.encoder.context_tokens
            if limit is None or self.tokens[place] + self.decoding.max_new_tokens <= limit:
                answers[place] = answer
            else:
                full.append(place)
        if full:
            self.reply(full, [Completion("", (), "context", self.tokens[one]) for one in full])
        return answers


def reply_from(reply: Reply, first_member: int) -> Reply:
    """Return the reply to conversations of a group of members, which are counted from 0 there."""

    def answer(places: Sequence[Place], completions: Sequence[Completion]) -> Sequence[str | None]:
        return reply([(first_member + member, row) for member, row in places], completions)

    return answer


@dataclass
class ConversationBatch:
    """The conversations of so many members in one batch."""

    decoder: TokenDecoder
    members: int
    turns: ConversationTurns

    def run(self) -> None:
        """Generate turn after turn until every conversation has ended."""
        decoding, tokens = self.turns.decoding, self.turns.tokens
        batch, live = self._begin()
        logits, turn = batch.prefill(), 0
        while True:
            start = batch.filled
            rows = self.members * self._slots
            texts = RowsInProgress(self.decoder.detokenize, decoding, rows)
            texts.ignore(sorted(texts.unfinished - live))
            self.decoder.write(batch, logits, texts, decoding, keeps_rows=True)
            written = {
                (place := self._place(row)): texts.completion(row, tokens[place])
                for row in sorted(live)
            }
            answers = self.turns.answers(written)
            if not answers:
                return
            # The batch has not read the last token that it wrote.
            steps, turn = batch.filled - start, turn + 1
            unread = {
                self._row(place): [*written[place].tokens[steps:], *answer]
                for place, answer in answers.items()
            }
            read = self._read(batch, written, start)
            live = set(unread)
            logits = self._go_on(batch, read, unread, turn)

    def _begin(self) -> tuple[DecodeBatch, set[int]]:
        """Make the batch of all first messages; return it and the rows that are conversations."""
        examples = self.turns.examples
        longest = 1 + max(row for _, row in examples)
        self._slots = slots = max(longest, -(-SMALLEST_BATCH // self.members))
        live = {self._row(place) for place in examples}
        rows = range(self.members * slots)
        encoded = [self.turns.encoder.encode(self._example(row)) for row in rows]
        prompts, places = distinct_prompts(encoded)
        prompt_of = torch.tensor(places).view(self.members, slots)
        padded = pad_prompts(prompts, self.turns.encoder.padding_id)
        noise = self._noise(rows, turn=0)
        return DecodeBatch.of(self.decoder.model, padded, prompt_of, noise), live

    def _read(self, batch: DecodeBatch, written: Mapping[Place, Completion], start: int) -> Tensor:
        """Return which places of the cache are of the texts, `[rows, filled]`.

        Those that a row has written after its turn had ended are not.
        """
        read = (batch.mask[:, 0, 0, : batch.filled] == 0).cpu()
        for number, row in enumerate(batch.rows.flatten().tolist()):
            if completion := written.get(self._place(row)):
                read[number, start + len(completion.tokens) :] = False
        return read

    def _go_on(
        self, batch: DecodeBatch, read: Tensor, unread: Mapping[int, list[int]], turn: int
    ) -> Tensor:
        """Let the batch read the answers, without the rows that are not needed any more."""
        members, slots = _rectangle(batch, unread)
        stay = (torch.tensor(members)[:, None] * batch.rows.shape[1] + slots).flatten()
        if len(members) < len(batch.rows):
            self.decoder.members_left(torch.tensor(members, device=batch.position.device))
        rows = batch.rows.flatten()[stay].tolist()
        answers = [unread.get(row, FILLER) for row in rows]
        return batch.go_on(stay, slots.shape[1], read, answers, self._noise(rows, turn))

    def _noise(self, rows: Sequence[int], turn: int) -> Tensor:
        """Draw the sampling noise of rows; those of one sample of an example have the same."""
        examples = [self._example(row) for row in rows]
        keys = [(example.index, example.sample) for example in examples]
        distinct = dict(zip(keys, examples, strict=True))
        drawn = draw_sampling_noise([*distinct.values()], self.turns.decoding, turn)
        number = {key: place for place, key in enumerate(distinct)}
        return drawn[torch.tensor([number[key] for key in keys])]

    def _example(self, row: int) -> Example:
        """Return the example of a row; rows that fill the batch have the first one."""
        examples = self.turns.examples
        return examples.get(self._place(row)) or next(iter(examples.values()))

    def _place(self, row: int) -> Place:
        return row // self._slots, row % self._slots

    def _row(self, place: Place) -> int:
        member, row = place
        return member * self._slots + row


def _rectangle(batch: DecodeBatch, unread: Container[int]) -> tuple[list[int], Tensor]:
    """Choose the members that stay, and as many rows of each: `[members, slots]`."""
    live = [[row in unread for row in rows] for rows in batch.rows.tolist()]
    members = [member for member, flags in enumerate(live) if any(flags)]
    width = max(max(map(sum, live)), -(-SMALLEST_BATCH // len(members)))
    if width > batch.rows.shape[1]:  # too few rows would be left
        members, width = list(range(len(live))), batch.rows.shape[1]
    return members, rows_needed_first(live, members, width)
