"""The prompt options of one member, where `prompt_search` searches some."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptVariant:
    """The prompt options of one member; None means the value of the task.

    Attributes:
        temperature: of sampling; 0 is greedy.
        few_shot: number of solved training examples before the prompt.
        template: text around the prompt, with `{prompt}` in place of the task's own prompt.
    """

    temperature: float | None = None
    few_shot: int | None = None
    template: str | None = None
