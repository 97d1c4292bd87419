"""What conversations of several turns are made of: examples, answers, and the tokens so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from germline.engines.prompt_batch import PromptEncoder
from germline.protocols import Conversations, Reply
from germline.types import Completion, Decoding, Example

Place = tuple[int, int]
"""(member, row) of a conversation."""


@dataclass
class ConversationTurns:
    """Conversations by their place, and how many tokens each has.

    Attributes:
        reply: called with the completions of a turn.
        examples: with which the conversations begin.
        tokens: number of tokens before the model's next turn.
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
        """Begin the conversations `[members][rows]`.

        Raises:
            GermlineError: the longest first message does not fit the model's context.
        """
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
            if not self.encoder.may_fit(message):  # tokenizing megabytes takes seconds
                full.append(place)
                continue
            answer = self.encoder.encode_answer(self.examples[place], completion, message)
            self.tokens[place] += len(answer)
            if self._has_room(self.tokens[place]):
                answers[place] = answer
            else:
                full.append(place)
        if full:
            self.reply(full, [Completion("", (), "context", self.tokens[one]) for one in full])
        return answers

    def _has_room(self, tokens: int) -> bool:
        limit = self.encoder.context_tokens
        return limit is None or tokens + self.decoding.max_new_tokens <= limit


def reply_from(reply: Reply, first_member: int) -> Reply:
    """Return the reply to conversations of a group of members, which are counted from 0 there."""

    def answer(places: Sequence[Place], completions: Sequence[Completion]) -> Sequence[str | None]:
        return reply([(first_member + member, row) for member, row in places], completions)

    return answer
