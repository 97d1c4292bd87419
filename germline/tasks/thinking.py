"""Remove what a reasoning model thinks from a completion before it is graded."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from germline.example import Transcript
from germline.protocols import EpisodeGrader, Grader, Task
from germline.types import Example

Result = TypeVar("Result")

READERS = ("grader", "episode_grader", "answer_of")
"""The attributes of a task that read completions."""


@dataclass(frozen=True)
class ThinkingStripper(Generic[Result]):
    """A function of (text or episode, example) that gets no thinking; picklable.

    Attributes:
        function: a grader, or the function that finds the answer in a text.
        tag: `think` for `<think>` ... `</think>`.
        is_opened: whether the chat template writes the opening tag into the prompt.
    """

    function: Callable[[Any, Example], Result]
    tag: str
    is_opened: bool = False

    @property
    def described(self) -> str | None:
        """The name of the function in messages, if it has one for them."""
        return getattr(self.function, "described", None)

    def __call__(self, asked: str | Transcript, example: Example) -> Result:
        """Call the function with what is written outside thinking blocks, in every reply."""
        if isinstance(asked, Transcript):
            strip = partial(without_thinking, tag=self.tag, is_opened=self.is_opened)
            return self.function(replace(asked, replies=tuple(map(strip, asked.replies))), example)
        is_opened = self.is_opened if example.chat else is_open(example.prompt, self.tag)
        return self.function(without_thinking(asked, self.tag, is_opened=is_opened), example)


def strip_thinking(task: Task, tag: str) -> None:
    """Let everything that reads completions of a task, a copy, read them without their thinking."""
    for name in READERS:
        if hasattr(task, name):
            setattr(task, name, ThinkingStripper(getattr(task, name), tag))


def open_thinking(task: Task) -> Task:
    """Return a task that strips thinking, for a chat template that writes the opening tag."""
    changed = copy.copy(task)
    for name in READERS:
        stripper = getattr(task, name, None)
        if isinstance(stripper, ThinkingStripper):
            setattr(changed, name, replace(stripper, is_opened=True))
    return changed


def own_grader(grader: Grader | EpisodeGrader) -> Grader | EpisodeGrader:
    """Return the grader of a task as it was before thinking was taken out of what it gets."""
    return grader.function if isinstance(grader, ThinkingStripper) else grader


def scored_text_of(task: Task) -> Callable[[str], str]:
    """Return what makes the text that scorers and judges get of a completion."""
    grader = task.grader
    if not isinstance(grader, ThinkingStripper):
        return str
    return partial(without_thinking, tag=grader.tag, is_opened=grader.is_opened)


def without_thinking(text: str, tag: str, *, is_opened: bool = False) -> str:
    """Return the text outside thinking blocks: after the last closing tag, up to an opening one.

    A block that is not closed is a completion that ran out of tokens before it answered; the
    opening tag may be the end of the prompt (`is_opened`), where chat templates write it. Tags may
    be in capitals.
    """
    *closed, rest = re.split(rf"</{tag}>\s*", text, flags=re.IGNORECASE)
    if is_opened and not closed:
        return ""
    return re.split(f"<{tag}>", rest, maxsplit=1, flags=re.IGNORECASE)[0]


def is_open(prompt: str, tag: str) -> bool:
    """Tell whether a prompt, as the model reads it, ends with an opening tag."""
    return prompt.rstrip().lower().endswith(f"<{tag}>".lower())
