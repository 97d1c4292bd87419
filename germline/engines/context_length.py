"""Check that prompts fit a model's context, and say what helps where they do not."""

from germline.errors import GermlineError

LEAST_ROOM = 16
"""Tokens of a completion below which `max_new_tokens` is not recommended: few answers fit."""


def check_context(prompt: int, new: int, context: int | None, named: str, which: str = "") -> None:
    """Check that the longest prompt and `max_new_tokens` fit in a model's context.

    Args:
        prompt: tokens of the longest prompt.
        new: tokens of a completion, at most.
        context: the longest text of the model; None: no limit.
        named: what the limit is called.
        which: names the prompt, after a blank.

    Raises:
        GermlineError: they need more tokens.
    """
    if context is not None and prompt + new > context:
        raise GermlineError(
            f"task: the longest prompt{which} takes {prompt} tokens and max_new_tokens={new}, "
            f"together {prompt + new}, above the model's context ({named}) of {context}: "
            f"{context_remedy(prompt, context)}"
        )


def context_remedy(prompt: int, context: int) -> str:
    """Say what helps where the longest prompt and a completion do not fit the context.

    A lower `max_new_tokens` helps only where it leaves room for an answer.
    """
    shorten = (
        "shorten the prompts (examples in the prompt, the system prompt, the number and the "
        "descriptions of tools) or use a model with a longer context"
    )
    room = context - prompt
    return (
        f"set task.max_new_tokens={room} or less, or {shorten}" if room >= LEAST_ROOM else shorten
    )
