"""Token ids to text, ids included that the model has and its tokenizer lacks.

Vocabularies are padded to round numbers: Qwen2.5 has 151,936 rows of embeddings and a tokenizer of
151,665 tokens. A model, a perturbed member above all, may sample an id of the padding. Such an id
counts as a token of the completion and adds nothing to its text.
"""

from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase


class Detokenizer:
    """Decodes with one tokenizer, without special tokens."""

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
