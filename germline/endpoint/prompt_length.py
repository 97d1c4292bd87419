"""Refuse prompts that do not fit the model's context.

`check_prompt_length` needs no tokenizer, as tokenizing megabytes takes seconds: the engine's thread
tokenizes prompts, so one that is far too long would keep all others waiting.
"""

from transformers import PreTrainedTokenizerBase

from germline.endpoint.http_app import RequestError
from germline.engines.prompt_batch import longest_token
from germline.types import Example


def check_prompt_length(
    example: Example, tokenizer: PreTrainedTokenizerBase, context: int | None
) -> None:
    """Refuse a prompt that exceeds the context even if each of its tokens is the longest one.

    Raises:
        RequestError: it does.
    """
    characters = len(example.prompt) + sum(len(content) for _, content in example.context)
    if context is None or characters <= context * longest_token(tokenizer):
        return
    raise RequestError(
        400,
        f"the prompt has {characters} characters, and the model's context has {context} tokens: "
        "shorten the prompt",
        param="messages" if example.chat else "prompt",
        code="context_length_exceeded",
    )


def check_room(tokens: int, asked: int, context: int | None) -> None:
    """Refuse a prompt that leaves no room in the context for `asked` more tokens.

    Raises:
        RequestError: it does.
    """
    if context is not None and tokens + asked > context:
        raise RequestError(
            400,
            f"the prompt has {tokens} tokens and max_tokens is {asked}; the model's context "
            f"has {context}: shorten the prompt or lower max_tokens",
            param="max_tokens",
            code="context_length_exceeded",
        )
