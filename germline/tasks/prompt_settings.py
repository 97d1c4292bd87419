"""What a config adds to any task: a system prompt, solved examples, fewer rows, no thinking."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from germline.config.tasks import TaskBase
from germline.environments.tool_calls import TOOLS_TITLE
from germline.episode_types import Transcript
from germline.prompt_variant import PromptVariant
from germline.protocols import EpisodeGrader, EpisodeTask, Grader, Task
from germline.tasks.prompt_format import PromptFormatter
from germline.types import Example, GermlineError, Split

Result = TypeVar("Result")
PROMPT_SETTINGS = ("system_prompt", "few_shot", "train_examples", "strip_thinking")
FEW_SHOT_SEED = 0
"""Of the order of solved examples: the same ones in every run, so that scores compare."""


def apply_prompt_settings(task: Task, config: TaskBase) -> Task:
    """Return the task with `PROMPT_SETTINGS`, which every task has.

    Raises:
        GermlineError: a system prompt without a chat, or too few solved examples.
    """
    changed = copy.copy(task)
    # Attributes of this instance: its class, and so what it can do besides, stays as it is.
    changed.examples = PromptedExamples(task, config)  # type: ignore[method-assign]
    if config.strip_thinking:
        changed.grader = ThinkingStripper[Mapping[str, float]](task.grader, config.thinking_tag)
        if isinstance(task, EpisodeTask):
            stripper = TranscriptThinkingStripper(task.episode_grader, config.thinking_tag)
            changed.episode_grader = stripper  # type: ignore[attr-defined]
        if hasattr(task, "answer_of"):
            changed.answer_of = ThinkingStripper(task.answer_of, config.thinking_tag)  # type: ignore[attr-defined]
    return changed


def own_grader(grader: Grader | EpisodeGrader) -> Grader | EpisodeGrader:
    """Return the grader of a task as it was before thinking was taken out of what it gets."""
    if isinstance(grader, ThinkingStripper):
        return grader.function
    return grader.grader if isinstance(grader, TranscriptThinkingStripper) else grader


class PromptedExamples:
    """The examples of a task, with the prompts that a config asks for."""

    def __init__(self, task: Task, config: TaskBase) -> None:
        train = task.examples("train")[: config.train_examples]
        formatter = PromptFormatter(train, FEW_SHOT_SEED, config.few_shot, setting="task.few_shot")
        self._examples: dict[Split, tuple[Example, ...]] = {}
        sides: tuple[Split, ...] = ("train", "test")
        for split in sides:
            examples = train if split == "train" else task.examples(split)
            self._examples[split] = tuple(
                _prompted(example, config, formatter) for example in examples
            )

    def __call__(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]


@dataclass(frozen=True)
class ThinkingStripper(Generic[Result]):
    """A function of (text, example) that gets the text without its thinking; picklable.

    Attributes:
        function: a grader, or the function that finds the answer in a text.
        tag: `think` for `<think>` ... `</think>`.
    """

    function: Callable[[str, Example], Result]
    tag: str

    @property
    def described(self) -> str | None:
        """The name of the function in messages, if it has one for them."""
        return getattr(self.function, "described", None)

    def __call__(self, text: str, example: Example) -> Result:
        """Call the function with the text outside the thinking block."""
        return self.function(without_thinking(text, self.tag), example)


@dataclass(frozen=True)
class TranscriptThinkingStripper:
    """An episode's grader that gets the replies without their thinking; picklable.

    Attributes:
        grader: of the episodes.
        tag: as for `ThinkingStripper`.
    """

    grader: EpisodeGrader
    tag: str

    def __call__(self, transcript: Transcript, example: Example) -> Mapping[str, float] | str:
        """Continue the episode with what the replies say outside their thinking blocks."""
        replies = tuple(without_thinking(reply, self.tag) for reply in transcript.replies)
        return self.grader(replace(transcript, replies=replies), example)


def without_thinking(text: str, tag: str) -> str:
    """Return the text after the last closing tag; without one, the text before the opening tag.

    Chat templates often write the opening tag into the prompt, so a completion may only close it.
    A block that is not closed is a completion that ran out of tokens before it answered.
    """
    _, closed, rest = text.rpartition(f"</{tag}>")
    return rest.lstrip() if closed else text.partition(f"<{tag}>")[0]


def _prompted(example: Example, config: TaskBase, formatter: PromptFormatter) -> Example:
    if config.few_shot:
        example = formatter.format_prompt(example, PromptVariant(few_shot=config.few_shot))
    if config.system_prompt is None:
        return example
    if not example.chat:
        raise GermlineError(
            "task.system_prompt needs a chat, but this task sends its prompts as they are: set "
            "task.chat=true"
        )
    tools = dict(example.context[:1]).get("system", "")
    if tools.startswith(TOOLS_TITLE):  # the description of an environment's tools
        system = f"{config.system_prompt}\n\n{tools}"
        return replace(example, context=(("system", system), *example.context[1:]))
    if any(role == "system" for role, _ in example.context):
        raise GermlineError(
            "task.system_prompt: the rows have system messages already: drop the setting"
        )
    return replace(example, context=(("system", config.system_prompt), *example.context))
