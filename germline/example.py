"""The data type of one task item, which engines answer and graders score."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from germline.episode_types import Turn


@dataclass(frozen=True, slots=True)
class Example:
    """One task item: the prompt as the task wrote it, and the facts its grader needs.

    Attributes:
        index: position in its split; also names its sampling noise.
        chat: whether the engine wraps the prompt in the model's chat template.
        answer: the gold completion; used by checks, displays and most graders.
        facts: further inputs of the grader, such as numbers and a target.
        context: (role, content) of each message before the prompt.
        token_ids: the prompt as token ids, which then take the place of the other fields.
        turns: what the model and an environment wrote after the prompt; the model goes on from it.
        date: that the chat template gets for today, as 2026-01-31; empty: the day it is.
        sample: which of several completions of its prompt this is; each has sampling noise of its
            own.
    """

    index: int
    prompt: str
    answer: str
    chat: bool
    facts: Mapping[str, object] = field(default_factory=dict)
    context: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    date: str = ""
    sample: int = 0
