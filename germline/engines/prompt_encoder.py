"""Examples as token ids for one model: encoded once, refused where the model cannot take them."""

from germline.engines.pretrained import PretrainedModel
from germline.engines.prompt_batch import encode_prompt
from germline.types import Example, GermlineError


class PromptEncoder:
    """The tokenizer of a model, seen from its engine.

    Attributes:
        end_ids: every token that ends a text.
        special_ids: tokens that are not part of what a text says, its end among them.
        padding_id: a token to fill rows up with, which the model knows.
    """

    def __init__(self, pretrained: PretrainedModel) -> None:
        self._pretrained = pretrained
        self._known_tokens = int(pretrained.model.get_input_embeddings().num_embeddings)
        self._encoded: dict[tuple[str, bool], list[int]] = {}
        self.end_ids = _end_ids(pretrained)
        self.special_ids = self.end_ids | frozenset(pretrained.tokenizer.all_special_ids)
        padding = pretrained.tokenizer.pad_token_id
        # One that was added to the tokenizer alone is unknown to the model.
        is_known = padding is not None and padding < self._known_tokens
        self.padding_id = int(padding) if is_known else 0

    def encode(self, example: Example) -> list[int]:
        """Tokenize a prompt, through the chat template where the example asks for it.

        Raises:
            GermlineError: it has no tokens, or some that the model does not know.
        """
        key = (example.prompt, example.chat)
        if key not in self._encoded:
            ids = encode_prompt(self._pretrained.tokenizer, example)
            if max(ids) >= self._known_tokens:
                raise GermlineError(
                    f"model: the tokenizer of {self._pretrained.source!r} writes the prompt "
                    f"{example.prompt[:60]!r} with token {max(ids)}, but the model knows only "
                    f"{self._known_tokens}: they do not belong together; get the folder again"
                )
            self._encoded[key] = ids
        return self._encoded[key]

    def check_length(self, tokens: int) -> None:
        """Refuse texts that may grow longer than the model's context.

        Raises:
            GermlineError: the longest prompt and `max_new_tokens` need so many tokens.
        """
        config = self._pretrained.model.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None) or tokens
        if tokens > limit:
            raise GermlineError(
                f"task: the longest prompt and max_new_tokens need {tokens} tokens, "
                f"above the model's context (max_position_embeddings) of {limit}: "
                "lower task.max_new_tokens or shorten the prompts"
            )


def _end_ids(pretrained: PretrainedModel) -> frozenset[int]:
    """Collect every token that ends a text: of generation config, model config and tokenizer."""
    ends: set[int] = set()
    sources = (pretrained.model.generation_config, pretrained.model.config, pretrained.tokenizer)
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        ends.update(
            value if isinstance(value, (list, tuple)) else [value] if value is not None else []
        )
    return frozenset(ends)
