"""What a config adds to any task: a system prompt, solved examples, fewer rows, no thinking."""

import copy
from collections.abc import Sequence
from dataclasses import replace

from germline.config.tasks import TaskBase
from germline.environments.tools import TOOLS_TITLE
from germline.protocols import Task
from germline.tasks.prompt_format import PromptFormatter
from germline.tasks.thinking import strip_thinking
from germline.types import Example, GermlineError, PromptVariant, Split

PROMPT_SETTINGS = ("system_prompt", "few_shot", "prompt_date", "train_examples", "strip_thinking")
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
        strip_thinking(changed, config.thinking_tag)
    return changed


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


def _prompted(example: Example, config: TaskBase, formatter: PromptFormatter) -> Example:
    if config.few_shot:
        example = formatter.format_prompt(example, PromptVariant(few_shot=config.few_shot))
    if config.prompt_date:
        example = replace(example, date=config.prompt_date)
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
