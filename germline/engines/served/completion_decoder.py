"""Turns generated tokens into completions that end where the inprocess engine's completions end.

Inference engines differ in where they cut at a stop string and in how they decode, so only the
tokens are used: the end token is kept, and so is the token that completes a stop string.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from germline.engines.rows_in_progress import Detokenizer, RowsInProgress
from germline.types import Completion, Decoding


@dataclass(frozen=True)
class CompletionDecoder:
    """Turns tokens into completions.

    Attributes:
        end_ids: every token that ends a text.
    """

    tokenizer: PreTrainedTokenizerBase
    end_ids: frozenset[int]

    def completion(
        self, tokens: Sequence[int], prompt_tokens: int, decoding: Decoding
    ) -> Completion:
        """Cut the generated tokens where their text ends."""
        rows = RowsInProgress(self._decode, self.end_ids, decoding, 1)
        for token in tokens[: decoding.max_new_tokens]:
            rows.write([0], [token])
        return rows.completion(0, prompt_tokens)

    @cached_property
    def _decode(self) -> Detokenizer:
        return Detokenizer(self.tokenizer, self.end_ids)
