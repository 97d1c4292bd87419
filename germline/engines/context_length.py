"""The context of a model, and what helps where a prompt does not fit."""

from collections.abc import Callable, Mapping
from typing import Any

from germline.errors import GermlineError

LEAST_ROOM = 16
"""Tokens of a completion below which `max_new_tokens` is not recommended: few answers fit."""


def context_limit(setting: Callable[[str], Any]) -> tuple[int | None, str]:
    """Return the longest text of a model, in tokens, and what the limit is called.

    With longrope (Phi-3, Phi-4), the rotary angles of all texts of a batch change when one of them
    exceeds `original_max_position_embeddings`, so an answer would depend on the rest of its batch.
    `setting` returns a setting of the config of a text model, or None.
    """
    rope = setting("rope_parameters") or setting("rope_scaling") or {}
    name, original = "max_position_embeddings", "original_max_position_embeddings"
    limits = [(setting(name), name)]
    for kind in (rope, *rope.values()):
        if isinstance(kind, Mapping) and "longrope" in (kind.get("rope_type"), kind.get("type")):
            limits.append((kind.get(original) or setting(original), f"{original}, as of longrope"))
    known = [limit for limit in limits if isinstance(limit[0], int) and limit[0] > 0]
    return min(known, default=(None, name))


def context_error(
    prompt: int, new: int, context: int, named: str, which: str = "the longest prompt"
) -> GermlineError:
    """Return the error of a prompt and `max_new_tokens` beyond a context that is called `named`."""
    return GermlineError(
        f"task: {which} takes {prompt} tokens and max_new_tokens={new}, "
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
