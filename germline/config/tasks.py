"""Settings of tasks: rewards, how completions are sampled, and the tasks that need no file."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from germline.config.base import KindOf, KindSection, Many
from germline.config.config_files import kind_of_file
from germline.config.scorers import Scorers
from germline.registry import register


def _calendar_date(value: str) -> str:
    return datetime.datetime.strptime(value, "%Y-%m-%d").date().isoformat()


KL_PART = "kl"
"""Name of the rubric part of the KL penalty."""


class TaskBase(KindSection):
    """Settings every task has."""

    @property
    def title(self) -> str:
        """Name of the task: its kind, or the name of its file."""
        return self.kind

    @property
    def sends_chats(self) -> bool:
        """Whether prompts go through the chat template; a Python file may decide otherwise."""
        return self.chat is not False

    kl_coef: float | None = Field(None, ge=0)
    """Reward lost per nat of KL divergence of a member from the start model, on its completion
    (`kl_coef` and `beta` of TRL). 0 only reports the divergence, as the part `kl`; `null` does not
    measure it."""
    kl_estimator: Literal["k1", "k3"] = "k3"
    """Estimator from the tokens of the completion, with d = log p_start - log p_member: `k1`,
    -d; `k3`, exp(d) - d - 1, which is never negative."""
    kl_per: Literal["token", "completion"] = "token"
    """The mean over the tokens of a completion, or their sum."""
    chat: bool | None = None
    """Wrap prompts in the model's chat template; default: as the task wants."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest completion, in tokens; default: the task's."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...] | None, Many] = None
    """Strings that end a completion; default: the task's."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature while training; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus probability mass; 1 keeps every token."""
    system_prompt: str | None = Field(None, min_length=1)
    """System message before every prompt; needs a chat template with that role."""
    few_shot: int = Field(0, ge=0)
    """Number of solved training examples before every prompt, the same ones in every run and never
    the example itself."""
    prompt_date: Annotated[str, AfterValidator(_calendar_date)] | None = None
    """Date (year-month-day) in prompts whose chat template writes today's; a run records the day
    on which it began."""
    overlong_prompts: Literal["error", "drop"] = "error"
    """Rows that do not fit the model's context with `max_new_tokens`: `drop` leaves them out."""
    train_examples: int | None = Field(None, ge=1)
    """Train on the first so many training examples; default: all."""
    strip_thinking: bool = False
    """Remove what a completion writes in `thinking_tag` before it is graded, closed or not."""
    thinking_tag: str = Field("think", pattern=r"^\w+$")
    """Name of the tag, such as `think` for `<think>` and `</think>`."""
    reward_functions: dict[str, float] = Field({})
    """Names and weights of reward functions that replace those of the task; written by
    `germline.train(config, reward=...)`."""
    reward_floor: float | dict[str, float] = 0.0
    """Worst value of these functions, one number or one per function; a completion that cannot be
    graded earns it."""
    scorers: Scorers = Field({})
    """Reward models, judges and reward services by name, such as `{helpful: {kind: germline,
    url: ...}}`; each adds its weighted score to the rewards of the task."""


@register("task", "germline.tasks.conciseness:ConcisenessTask")
class Conciseness(TaskBase):
    """Answer with as few characters as the gold answer: reward = -|length difference|."""

    kind: Literal["conciseness"] = "conciseness"
    data: Literal["facts", "paper"] = "facts"
    """`facts`: questions the nano model knows; `paper`: the 2 + 8 pairs of Qiu et al."""
    split_seed: int = 0
    """Seed of the train/test split."""


@register("task", "germline.tasks.arithmetic:ArithmeticTask")
class Arithmetic(TaskBase):
    """Answer a short sum, difference or product with the bare number: reward 1 if exact."""

    kind: Literal["arithmetic"] = "arithmetic"
    split_seed: int = 0
    """Seed of the train/test split of operand pairs."""


@register("task", "germline.tasks.countdown:CountdownTask")
class Countdown(TaskBase):
    """Reach a target from given numbers: reward = 0.1 x format + answer."""

    kind: Literal["countdown"] = "countdown"
    path: Path | None = None
    """JSON list of {context, numbers, target, solution}; default: generated rows, see `puzzles`."""
    puzzles: Literal["small", "field"] = "small"
    """Generated rows: `small`, 3 numbers up to 9, which the nano model can solve; `field`, 3 or
    4 numbers up to 99, as in the papers."""
    split: Literal["field", "seeded"] = "field"
    """`field`: first 200 rows train, last 2000 test; `seeded`: a seeded 80/20 split."""
    split_seed: int = 0
    """Seed of the generated rows and of the seeded split."""

    @property
    def sends_chats(self) -> bool:
        """Whether prompts go through the chat template: by default they are sent as they are."""
        return self.chat is True


@register("task", "germline.tasks.arithmetic:MultiplicationTask")
class Multiplication(TaskBase):
    """Multiply two numbers of so many digits and answer with the bare number: 1 if exact."""

    kind: Literal["multiplication"] = "multiplication"
    digits: int = Field(3, ge=1, le=6)
    """Digits of each factor."""
    split_seed: int = 0
    """Seed of the factors drawn and of the train/test split of factor pairs."""


class EpisodeSettings(TaskBase):
    """Settings every task of episodes has; `max_new_tokens` and `stop` hold for each turn."""

    max_turns: int | None = Field(None, ge=1)
    """Most turns of the model in an episode; default: the task's."""


@register("task", "germline.tasks.environment_task:WordleTask")
class Wordle(EpisodeSettings):
    """Find a secret word in six guesses: reward = marks of the last guess + 0.2 x valid guesses."""

    kind: Literal["wordle"] = "wordle"
    split_seed: int = 0
    """Seed of the train/test split of the secret words."""


def _from_file(value: object) -> object:
    """Accept a file as the whole section, `task: my_task.py`, or as its kind."""
    section = value if isinstance(value, Mapping) else {"kind": value}
    path = Path(str(section.get("path")))
    if "kind" not in section and path.suffix == ".py":
        return {**section, "kind": kind_of_file(path)}  # no other kind reads such a file
    kind = kind_of_file(Path(str(section.get("kind"))))
    return value if kind is None else {"path": section["kind"], **section, "kind": kind}


TaskConfig = Annotated[TaskBase, KindOf("task", default="conciseness"), BeforeValidator(_from_file)]
