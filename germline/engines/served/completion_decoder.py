"""Turns generated tokens into completions that end where the inprocess engine's completions end.

Inference engines differ in where they cut at a stop string and in how they decode, so only the
tokens are used: the end token is kept, and so is the token that completes a stop string.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from germline.engines.rows_in_progress import Detokenizer
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
        kept = list(tokens[: decoding.max_new_tokens])
        end = next((index for index, token in enumerate(kept) if token in self.end_ids), None)
        written = kept if end is None else kept[:end]
        stopped = self._tokens_until_stop(written, decoding.stop)
        if stopped is not None:
            kept = written[:stopped]
            text = self._decode(kept)
            cuts = [cut for stop in decoding.stop if (cut := text.find(stop)) >= 0]
            return Completion(text[: min(cuts)], tuple(kept), "stop", prompt_tokens)
        if end is not None:
            return Completion(self._decode(written), tuple(kept[: end + 1]), "eos", prompt_tokens)
        return Completion(self._decode(kept), tuple(kept), "length", prompt_tokens)

    def _tokens_until_stop(self, tokens: Sequence[int], stops: Sequence[str]) -> int | None:
        """Return the smallest number of first tokens whose text contains a stop string."""
        if not any(stop in self._decode(tokens) for stop in stops):
            return None
        counts = range(1, len(tokens) + 1)
        texts = ((count, self._decode(tokens[:count])) for count in counts)
        return next(count for count, text in texts if any(stop in text for stop in stops))

    @cached_property
    def _decode(self) -> Detokenizer:
        return Detokenizer(self.tokenizer, self.end_ids)
