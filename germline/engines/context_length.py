"""Check that prompts fit a model's context."""

from germline.errors import GermlineError


def check_context(tokens: int, context: int | None, named: str) -> None:
    """Check that the longest prompt and `max_new_tokens` fit in a model's context.

    Args:
        tokens: that they need.
        context: the longest text of the model; None: no limit.
        named: what the limit is called.

    Raises:
        GermlineError: they need more tokens.
    """
    if context is not None and tokens > context:
        raise GermlineError(
            f"task: the longest prompt and max_new_tokens need {tokens} tokens, "
            f"above the model's context ({named}) of {context}: "
            "lower task.max_new_tokens or shorten the prompts"
        )
