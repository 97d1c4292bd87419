"""The texts of a batch while they are generated: the tokens of each row, their text, its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from transformers import PreTrainedTokenizerBase

from germline.types import Completion, Decoding, Finish

_CONTROL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def control_ids(tokenizer: PreTrainedTokenizerBase, end_ids: frozenset[int]) -> frozenset[int]:
    """Return the tokens that are no part of a text: those that begin, end or fill one.

    Other special tokens, such as the tags of thinking and of tool calls, are part of it.
    """
    ids = {getattr(tokenizer, f"{name}_token_id", None) for name in _CONTROL}
    return end_ids | frozenset(int(token) for token in ids if token is not None)


class Detokenizer:
    """Decodes with one tokenizer, without control tokens.

    Vocabularies are padded to round numbers: Qwen2.5 has 151,936 rows of embeddings and a tokenizer
    of 151,665 tokens. A model, a perturbed member above all, may sample an id of the padding, which
    counts as a token of the completion and adds nothing to its text.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_ids: frozenset[int] = frozenset()
    ) -> None:
        self.end_ids = end_ids
        self._tokenizer = tokenizer
        self._size = len(tokenizer)
        self._control = control_ids(tokenizer, end_ids)

    def __call__(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; ids that the tokenizer does not have add nothing."""
        if max(tokens, default=0) >= self._size:
            # Fast tokenizers skip such ids; others raise, or write "unknown".
            tokens = [token for token in tokens if token in self._known]
        written = [token for token in tokens if token not in self._control]
        # Some tokenizers would put a blank on both sides of a special token.
        return str(self._tokenizer.decode(written, spaces_between_special_tokens=False))

    def control_stops(self, stop: Sequence[str]) -> frozenset[int]:
        """Return the control tokens that are stop strings, which no text can hold."""
        return frozenset(one for one in self._control if self._tokenizer.decode([one]) in stop)

    def last(self, tokens: Sequence[int], count: int) -> str:
        """Return the text of the last `count` tokens that are part of a text."""
        written = (token for token in reversed(tokens) if token not in self._control)
        return self([*islice(written, count)][::-1])

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_vocab().values())


@dataclass
class _Row:
    tokens: list[int] = field(default_factory=list)
    finish: Finish = "length"
    text: str | None = None


class RowsInProgress:
    """The tokens of all rows, and which rows are unfinished."""

    def __init__(self, detokenize: Detokenizer, decoding: Decoding, rows: int) -> None:
        self._detokenize = detokenize
        self.stop = decoding.stop
        self._stop_ids = detokenize.control_stops(self.stop) if self.stop else frozenset[int]()
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
            if token in self._detokenize.end_ids:
                self._finish(number, "eos")
            elif token in self._stop_ids:
                self._finish(number, "stop")
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
        text = self._decode(row.tokens) if row.text is None else row.text
        return Completion(text, tuple(row.tokens), row.finish, prompt_tokens)

    def _stop_at_string(self, number: int) -> None:
        tokens = self.rows[number].tokens
        # A stop string can only end in the newest token. Each token is at least a byte of the text,
        # and the first ones of a tail may be decoded differently than after the tokens before it.
        longest = max(len(stop.encode()) for stop in self.stop)
        tail = self._detokenize.last(tokens, longest + 8)
        if not any(stop in tail for stop in self.stop):
            return
        text = self._detokenize(tokens)
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


def cut_completion(
    detokenize: Detokenizer, tokens: Sequence[int], prompt_tokens: int, decoding: Decoding
) -> Completion:
    """Cut the tokens of an inference engine where their text ends, as it ends here.

    Inference engines differ in where they cut at a stop string and in how they decode, so only the
    tokens are used: the end token is kept, and so is the token that completes a stop string.
    """
    rows = RowsInProgress(detokenize, decoding, 1)
    for token in tokens[: decoding.max_new_tokens]:
        rows.write([0], [token])
    return rows.completion(0, prompt_tokens)
