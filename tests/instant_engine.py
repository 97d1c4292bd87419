"""An engine that answers at once, with texts that are known before: a policy without latency."""

from collections.abc import Callable, Sequence
from unittest.mock import MagicMock

from germline.protocols import Conversations, Members, Reply
from germline.types import Completion, Decoding, Example
from tests.wrappers import EngineWrapper

TURNS = 100
"""Most turns of a conversation."""


class InstantEngine(EngineWrapper):
    """Writes texts that depend on the conversation alone.

    Args:
        text_of: (first message, number of the turn from 0) -> text.
    """

    def __init__(self, text_of: Callable[[str, int], str]) -> None:
        super().__init__(MagicMock())  # of what is not written here nothing is asked
        self._text_of = text_of

    def generate(
        self, members: Members, examples: Sequence[Example], decoding: Decoding
    ) -> list[list[Completion]]:
        """Return the texts: `[members][examples]`."""
        return [[self._completion(*_asked(one)) for one in examples] for _ in members]

    def converse(
        self, members: Members, prompts: Conversations, decoding: Decoding, reply: Reply
    ) -> None:
        """Hold all conversations, turn by turn."""
        live = {
            (member, row): _asked(example)
            for member, rows in enumerate(prompts)
            for row, example in enumerate(rows)
        }
        for turn in range(TURNS):
            if not live:
                return
            written = [self._completion(first, before + turn) for first, before in live.values()]
            answers = reply([*live], written)
            live = {
                place: asked
                for (place, asked), answer in zip(live.items(), answers, strict=True)
                if answer is not None
            }

    def _completion(self, first: str, turn: int) -> Completion:
        text = self._text_of(first, turn)
        return Completion(text, (0,) * (len(text.split()) + 1), "eos", 1)


def _asked(example: Example) -> tuple[str, int]:
    """Return the first message of the user, and how many replies there are before."""
    turns = (*example.context, ("user", example.prompt))
    first = next(text for role, text in turns if role == "user")
    return first, sum(role == "assistant" for role, _ in turns)
