"""The texts of a batch while they are generated: the tokens of each row, their text, its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from germline.types import Completion, Decoding, Finish


class Detokenizer:
    """Decodes with one tokenizer, without special tokens.

    Vocabularies are padded to round numbers: Qwen2.5 has 151,936 rows of embeddings and a tokenizer
    of 151,665 tokens. A model, a perturbed member above all, may sample an id of the padding. Such
    an id counts as a token of the completion and adds nothing to its text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer)

    def __call__(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; ids that the tokenizer does not have add nothing."""
        if max(tokens, default=0) >= self._size:
            # Fast tokenizers skip such ids; others raise, or write "unknown".
            tokens = [token for token in tokens if token in self._known]
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_vocab().values())


@dataclass
class _Row:
    """The tokens of one row."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish = "length"
    text: str | None = None


class RowsInProgress:
    """The tokens of all rows, and which rows are unfinished."""

    def __init__(
        self, detokenize: Detokenizer, end_ids: frozenset[int], decoding: Decoding, rows: int
    ) -> None:
        self._detokenize = detokenize
        self._end_ids = end_ids
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
            if token in self._end_ids:
                self._finish(number, "eos")
            elif self.stop:
                self._stop_at_string(number)

    def completions(self, members: int, prompt_lengths: Sequence[int]) -> list[list[Completion]]:
        """Return `[members][examples]`, without the rows that fill the batch."""
        slots = len(self.rows) // members
        return [
            [
                self.completion(member * slots + example, length)
                for example, length in enumerate(prompt_lengths)
            ]
            for member in range(members)
        ]

    def completion(self, number: int, prompt_tokens: int) -> Completion:
        """Return the completion of one row."""
        row = self.rows[number]
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
            self._decoded[key] = self._detokenize(key)
        return self._decoded[key]
