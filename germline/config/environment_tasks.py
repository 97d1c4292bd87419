"""Settings of tasks that are played in an environment, in episodes of several turns."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from germline.config.base import Many
from germline.config.tasks import CustomTask, FileTask, TaskBase
from germline.registry import register


class EpisodeSettings(TaskBase):
    """Settings every task of episodes has; `max_new_tokens` and `stop` hold for each turn."""

    max_turns: int | None = Field(None, ge=1)
    """Most turns of the model in an episode; default: the task's."""


@register("task", "germline.tasks.environment_file:FileEnvironmentTask")
class Environment(CustomTask, FileTask, EpisodeSettings):
    """A Python file with an environment class and its rows; see docs/environments.md."""

    kind: Literal["environment"] = "environment"


@register("task", "germline.tasks.shipped_environments:WordleTask")
class Wordle(EpisodeSettings):
    """Find a secret word in six guesses: reward = marks of the last guess + 0.2 x valid guesses."""

    kind: Literal["wordle"] = "wordle"
    words: Path | None = None
    """File with one word per line, all of the same length; default: the words that the nano
    model knows."""
    split_seed: int = 0
    """Seed of the train/test split of the secret words."""


@register("task", "germline.tasks.shipped_environments:GuessNumberTask")
class GuessNumber(EpisodeSettings):
    """Find a number with the answers `higher` and `lower`: reward 1 + 0.1 x closeness."""

    kind: Literal["guess_number"] = "guess_number"
    largest: int = Field(100, ge=2, le=10**6)
    """Numbers go from 1 to this."""


@register("task", "germline.tasks.shipped_environments:CalculatorTask")
class Calculator(EpisodeSettings):
    """Compute a * b + c with two tools: reward 1 if the last result is right."""

    kind: Literal["calculator"] = "calculator"
    split_seed: int = 0
    """Seed of the train/test split of the expressions."""


@register("task", "germline.tasks.verifiers_task:VerifiersTask")
class Verifiers(EpisodeSettings):
    """An environment of the library verifiers (v1); see docs/environments.md."""

    kind: Literal["verifiers"] = "verifiers"
    env: str = Field(min_length=1)
    """Installed taskset, such as `owner/name` of the hub or the name of a module; or a Python
    file (.py)."""
    args: dict[str, Any] = Field({})
    """Settings of the taskset, as its own configuration names them."""
    tasks: int | None = Field(None, ge=2)
    """Number of tasks read from the taskset, the first ones; default: all. A taskset without an
    end needs it."""
    metrics: Annotated[tuple[str, ...], Many] = Field(())
    """Further rewards and metrics to record, which the environment computes but does not
    declare with `@vf.reward` or `@vf.metric`."""
    floor: float = 0.0
    """Worst reward of an episode; what the model makes fail earns it."""
    split_seed: int = 0
    """Seed of the 80/20 train/test split of the tasks."""

    @property
    def title(self) -> str:
        """What the task is called: the name of the taskset."""
        return Path(self.env.partition("@")[0]).stem
