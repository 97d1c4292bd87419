"""The tokens a server wrote, as completions: ended and cut exactly as the inprocess engine does.

Servers differ in where they cut at a stop string and in what they decode, so the tokens alone count
here: the end token is kept, and so is the token that completes a stop string.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from germline.engines.detokenize import Detokenizer
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
        """Cut what was written where its text ends."""
        kept = list(tokens[: decoding.max_new_tokens])
        end = next((place for place, token in enumerate(kept) if token in self.end_ids), None)
        written = kept if end is None else kept[:end]
        stopped = self._first_stop(written, decoding.stop)
        if stopped is not None:
            kept = written[:stopped]
            text = self._decode(kept)
            places = [place for stop in decoding.stop if (place := text.find(stop)) >= 0]
            return Completion(text[: min(places)], tuple(kept), "stop", prompt_tokens)
        if end is not None:
            return Completion(self._decode(written), tuple(kept[: end + 1]), "eos", prompt_tokens)
        return Completion(self._decode(kept), tuple(kept), "length", prompt_tokens)

    def _first_stop(self, tokens: Sequence[int], stop: Sequence[str]) -> int | None:
        """Return after how many tokens a stop string stands there first."""
        if not any(one in self._decode(tokens) for one in stop):
            return None
        counts = range(1, len(tokens) + 1)
        texts = ((count, self._decode(tokens[:count])) for count in counts)
        return next(count for count, text in texts if any(one in text for one in stop))

    @cached_property
    def _decode(self) -> Detokenizer:
        return Detokenizer(self.tokenizer)
