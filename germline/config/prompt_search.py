"""Settings of the prompt search: templates, temperatures and numbers of solved examples to try."""

from typing import Annotated

from pydantic import Field, model_validator

from germline.config.base import Many, Section

SEARCHED = ("template", "temperature", "few_shot")
"""Settings that can have options, in the order in which their probabilities are recorded."""


class PromptSearch(Section):
    """Prompt options that are searched with the weights; each member uses one option per setting.

    The center uses the most likely option of each setting; of equally likely ones, the first.
    """

    template: Annotated[tuple[str, ...], Many] = ()
    """Templates of the prompt, with `{prompt}` in place of the task's own prompt."""
    temperature: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Sampling temperatures; 0 is greedy."""
    few_shot: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Numbers of solved training examples in front of the prompt."""
    learning_rate: float = Field(0.3, gt=0, le=1)
    """Share of the estimated natural gradient by which probabilities change."""
    min_probability: float = Field(0.05, ge=0, lt=0.5)
    """Smallest probability of an option."""

    @property
    def options(self) -> dict[str, tuple[object, ...]]:
        """The options of each setting that has some."""
        return {name: tuple(getattr(self, name)) for name in SEARCHED if getattr(self, name)}

    @model_validator(mode="after")
    def _options_differ(self) -> "PromptSearch":
        for name, options in self.options.items():
            if len(options) < 2:
                where = f", or set task.{name} for all" if name == "temperature" else ""
                raise ValueError(
                    f"{name}={list(options)} leaves nothing to choose: give two options or more"
                    f"{where}"
                )
            if len(set(options)) < len(options):
                raise ValueError(f"{name}={list(options)} has an option twice: drop one of them")
            if self.min_probability * len(options) >= 1:
                raise ValueError(
                    f"min_probability={self.min_probability:g} for each of the {len(options)} "
                    f"options of {name} leaves nothing to change: use less than "
                    f"{1 / len(options):.2g}"
                )
        return self

    @model_validator(mode="after")
    def _templates_hold_the_prompt(self) -> "PromptSearch":
        for template in self.template:
            if "{prompt}" not in template:
                raise ValueError(
                    f"template {template!r} has no place for the task's prompt: write {{prompt}} "
                    "there"
                )
        return self
