"""Token ids to text, also ids that a model has and its tokenizer has not.

Vocabularies are padded to round numbers: Qwen2.5 has 151,936 rows of embeddings and a tokenizer of
151,665 tokens. Nothing forbids a model to sample an id of the padding, and a perturbed member may.
Such an id is a token like any other in the completion and its length; in the text it is nothing.
"""

from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase


class Detokenizer:
    """Decodes with one tokenizer, leaving special tokens out."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer)

    def __call__(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; ids that the tokenizer does not have add nothing."""
        if max(tokens, default=0) >= self._size:
            # Fast tokenizers leave them out by themselves; others raise, or write "unknown".
            tokens = [token for token in tokens if token in self._known]
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_vocab().values())
