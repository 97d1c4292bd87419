"""Settings of the search over what is no weight: prompt variants, temperatures, solved examples."""

from typing import Annotated

from pydantic import Field, model_validator

from germline.config.base import Many, Section
from germline.config.tasks import TaskBase

GIVEN = ("template", "temperature", "few_shot")
"""What can be chosen, in the order in which probabilities are kept."""


class PromptSearch(Section):
    """Discrete settings searched beside the weights: members play with one option of each.

    List the option you would use without a search first: it stands for the center until one is more
    likely.
    """

    template: Annotated[tuple[str, ...], Many] = Field(
        (),
        description="Prompts to choose from, with `{prompt}` where the task's own goes.",
    )
    temperature: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (), description="Sampling temperatures to choose from; 0 is greedy."
    )
    few_shot: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="Numbers of solved training examples before the prompt, to choose from.",
    )
    rate: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of the estimated natural gradient by which probabilities move.",
    )
    floor: float = Field(0.05, ge=0, lt=0.5, description="No option becomes less likely than this.")

    @property
    def options(self) -> dict[str, tuple[object, ...]]:
        """What is searched: the options of each setting that has some."""
        return {name: tuple(getattr(self, name)) for name in GIVEN if getattr(self, name)}

    @model_validator(mode="after")
    def _there_is_a_choice(self) -> "PromptSearch":
        for name, options in self.options.items():
            if len(options) < 2:
                where = "" if name == "template" else f", or set task.{name} for all"
                where = where if name != "few_shot" else ""
                raise ValueError(
                    f"{name}={list(options)} leaves nothing to choose: give two options or more"
                    f"{where}"
                )
            if len(set(options)) < len(options):
                raise ValueError(f"{name}={list(options)} has an option twice: drop one of them")
            if self.floor * len(options) >= 1:
                raise ValueError(
                    f"floor={self.floor:g} for each of the {len(options)} options of {name} leaves "
                    f"nothing to move: use less than {1 / len(options):.2g}"
                )
        return self

    @model_validator(mode="after")
    def _a_template_holds_the_prompt(self) -> "PromptSearch":
        for template in self.template:
            if "{prompt}" not in template:
                raise ValueError(
                    f"template {template!r} does not say where the task's prompt goes: write "
                    "{prompt} there"
                )
        return self

    @model_validator(mode="after")
    def _something_is_chosen(self) -> "PromptSearch":
        for name in ("rate", "floor"):
            if not self.options and self.changed(name):
                raise ValueError(
                    f"{name}={getattr(self, name):g} would be ignored, as there is nothing to "
                    f"choose: give {', '.join(GIVEN)} options, or drop it"
                )
        return self


def check_prompt_search(choices: PromptSearch, task: TaskBase, method: str, strategy: str) -> None:
    """Refuse choices that a run would not play, and settings they would override.

    Raises:
        ValueError: something that is set would be ignored.
    """
    if not choices.options:
        return
    if method != "es":
        raise ValueError(
            f"choices of {', '.join(choices.options)} cannot be searched by method.kind={method}: "
            "use method.kind=es, or drop them"
        )
    if strategy != "nes":
        raise ValueError(
            f"choices of {', '.join(choices.options)} cannot be searched beside strategy.kind="
            f"{strategy}: use strategy.kind=nes, or drop them"
        )
    if choices.temperature and task.temperature:
        raise ValueError(
            f"task.temperature={task.temperature:g} would be ignored beside choices.temperature="
            f"{list(choices.temperature)}: drop it, and list it in choices.temperature if it "
            "is to be played"
        )
