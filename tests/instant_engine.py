"""An engine that answers at once, with texts that are known before: a policy without latency."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from germline.protocols import Conversations, MasterWeights, Members, Reply, Texts
from germline.types import Completion, Decoding, Example, MeanUpdate, Update, UpdateSize

Place = tuple[int, int]

TURNS = 100
"""Most turns of a conversation."""


class InstantEngine:
    """Writes texts that depend on the conversation alone.

    Args:
        text_of: (first message, number of the turn from 0) -> text.
    """

    weights = cast(MasterWeights, None)  # there are none, and nothing asks for them

    def __init__(self, text_of: Callable[[str, int], str]) -> None:
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

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Return zeros."""
        return [[[0.0] * len(one.tokens) for one in row] for row in completions]

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Learn nothing."""
        return None

    def refresh(self) -> None:
        """Do nothing."""

    def save_model(self, folder: Path) -> Any:
        """Write nothing."""

    def save_adapter(self, folder: Path) -> Any:
        """Write nothing."""

    def close(self) -> None:
        """End nothing."""

    def _completion(self, first: str, turn: int) -> Completion:
        text = self._text_of(first, turn)
        return Completion(text, (0,) * (len(text.split()) + 1), "eos", 1)


def _asked(example: Example) -> tuple[str, int]:
    """Return the first message of the user, and how many replies there are before."""
    turns = (*example.context, ("user", example.prompt))
    first = next(text for role, text in turns if role == "user")
    return first, sum(role == "assistant" for role, _ in turns)
