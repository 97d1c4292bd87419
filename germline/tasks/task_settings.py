"""What a config adds to any task: prompts, fewer rows, no thinking, parts of the reward.

A system prompt and solved examples of the training split stand before every prompt. All members get
the same solved examples, in a seeded order; an example is never its own. The template of
`prompt_search` is applied to the solved examples as well.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from germline import noise
from germline.config.tasks import KL_PART, TaskBase
from germline.environments.tools import TOOLS_TITLE
from germline.example import Transcript
from germline.protocols import EpisodeGrader, Grader, Task
from germline.types import Example, GermlineError, PromptVariant, Split

PROMPT_SETTINGS = ("system_prompt", "few_shot", "train_examples", "strip_thinking")
FEW_SHOT_SEED = 0
"""Of the order of solved examples: the same ones in every run, so that scores compare."""


class PromptFormatter:
    """Rewrites examples as a choice asks for it.

    Args:
        train: the training examples, those to show among them.
        run_seed: of the order in which they are shown.
        most: the most that are ever asked for.
        setting: that asks for them, for errors.
    """

    def __init__(
        self,
        train: Sequence[Example],
        run_seed: int,
        most: int,
        setting: str = "prompt_search.few_shot",
    ) -> None:
        solved = [one for one in train if one.answer]
        if most and len(solved) <= most:
            raise GermlineError(
                f"{setting} asks for up to {most} solved examples before a prompt, but the "
                f"training split has {len(solved)} with an answer, and an example never shows "
                "itself: ask for fewer"
            )
        order = noise.epoch_permutation(run_seed, "shots", 0, len(solved)) if most else ()
        # One more than asked for, as the example itself may be among them.
        self._solved = [solved[int(place)] for place in order[: most + 1]]

    def format_prompt(self, example: Example, choice: PromptVariant) -> Example:
        """Return an example with the prompt a member with this choice is given."""
        prompt = _in_template(example, choice)
        shown = [_solved(one, choice) for one in self._shown(example, choice.few_shot or 0)]
        return replace(example, prompt="\n\n".join([*shown, prompt]))

    def _shown(self, example: Example, count: int) -> Iterator[Example]:
        asked = example.context, example.prompt
        others = (one for one in self._solved if (one.context, one.prompt) != asked)
        return islice(others, count)


def apply_prompt_settings(task: Task, config: TaskBase) -> Task:
    """Return the task with `PROMPT_SETTINGS`, which every task has."""
    train = task.examples("train")[: config.train_examples]
    formatter = PromptFormatter(train, FEW_SHOT_SEED, config.few_shot, setting="task.few_shot")
    sides: dict[Split, Sequence[Example]] = {"train": train, "test": task.examples("test")}
    examples = {
        split: tuple(_prompted(example, config, formatter) for example in rows)
        for split, rows in sides.items()
    }
    changed = copy.copy(task)
    # An attribute of this instance: its class, and so what it can do besides, stays as it is.
    changed.examples = examples.__getitem__  # type: ignore[method-assign, assignment]
    if config.strip_thinking:
        strip_thinking(changed, config.thinking_tag)
    return changed


def _prompted(example: Example, config: TaskBase, formatter: PromptFormatter) -> Example:
    if config.few_shot:
        example = formatter.format_prompt(example, PromptVariant(few_shot=config.few_shot))
    if config.system_prompt is None:
        return example
    if not example.chat:
        raise GermlineError(
            "task.system_prompt: this task sends its prompts without a chat template: set "
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


def _in_template(example: Example, choice: PromptVariant) -> str:
    if choice.template is None:
        return example.prompt
    return choice.template.replace("{prompt}", example.prompt)


def _solved(example: Example, choice: PromptVariant) -> str:
    """Return a prompt with its answer: on a new line for a chat, else in the same line."""
    prompt = _in_template(example, choice)
    if example.chat:
        return f"{prompt}\n{example.answer}"
    gap = "" if prompt[-1:].isspace() or example.answer[:1].isspace() else " "
    return f"{prompt}{gap}{example.answer}"


def add_scorer_parts(task: Task, config: TaskBase) -> Task:
    """Return the task with a part for each scorer of its config, and one for the KL penalty.

    These parts have no floor: a completion that cannot be scored is missing.
    """
    scored = {name: scorer.weight for name, scorer in config.scorers.items()}
    if config.kl_coef is not None and KL_PART in {**task.rubric, **scored}:
        raise GermlineError(
            f"task.kl_coef={config.kl_coef:g} adds the part {KL_PART!r}: rename the reward or "
            "scorer of this name"
        )
    for name in scored:
        if name in task.rubric:
            raise GermlineError(
                f"task.scorers.{name}: the task has a reward of this name: rename the scorer"
            )
    if config.kl_coef is not None:
        scored[KL_PART] = 0.0 - config.kl_coef
    changed = copy.copy(task)
    changed.rubric = {**task.rubric, **scored}
    return changed


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
