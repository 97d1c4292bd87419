"""Tasks of episodes in an environment: what they share, and the task made of a Python file.

The file defines a class with `reset`, `train` (and perhaps `test`), and an optional mapping
`settings` with what `EnvironmentSettings` lists. docs/environments.md shows one. The rows are read
here, in the main process; the environment runs in grader workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pydantic import Field, field_validator

from germline.config import Environment, EpisodeSettings
from germline.environments.environment_file import inspect_environment, make_grader
from germline.environments.episode import EpisodeRubric
from germline.environments.grader import RubricGrader, SingleReplyGrader
from germline.environments.tools import tool_prompt
from germline.graders.reward_functions import floors_by_name
from germline.graders.task_file import TaskFile, load_task_file
from germline.protocols import EpisodeGrader, Grader
from germline.tasks.python_file import FileSettings, file_examples, file_metric, file_settings
from germline.tasks.splits import SplitTask
from germline.types import Example, GermlineError, Split

MAX_TURNS = 10


class EpisodeLimits(NamedTuple):
    """Defaults of a task, which the config overrides.

    Attributes:
        max_turns: of the model in an episode.
        max_new_tokens: of a turn.
        stop: strings that end a turn.
    """

    max_turns: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()


class EnvironmentTask(SplitTask):
    """Rows, and the environment in which the model plays them.

    Args:
        config: the section, which overrides the defaults below.
        grader: plays the environment.
        examples: by split; their facts are the rows that `reset` gets.
        metric: the part of the reward that held-out scores report.
        limits: defaults of the limits of an episode.
        tools: description of the tools, which the model reads before the prompt.
    """

    def __init__(
        self,
        config: EpisodeSettings,
        grader: RubricGrader,
        examples: Mapping[Split, Sequence[Example]],
        *,
        metric: str,
        limits: EpisodeLimits,
        tools: str = "",
    ) -> None:
        self.name = config.title
        self.has_tools = bool(tools)
        self.episode_grader: EpisodeGrader = grader
        self.grader: Grader = SingleReplyGrader(grader)
        self.rubric: Mapping[str, float] = grader.rubric.weights
        self.floor: Mapping[str, float] = grader.rubric.floors
        self.metric = metric
        self.metric_higher_is_better = self.rubric[metric] >= 0
        self.max_turns = config.max_turns or limits.max_turns
        self.max_new_tokens = config.max_new_tokens or limits.max_new_tokens
        self.stop = limits.stop if config.stop is None else config.stop
        self._examples = {
            split: tuple(_with_tools(row, tools) for row in rows)
            for split, rows in examples.items()
        }


class EnvironmentSettings(FileSettings):
    """The mapping `settings` of a file with an environment; the config overrides it."""

    max_turns: int = Field(MAX_TURNS, ge=1)
    rubric: dict[str, float] = Field({"reward": 1.0}, min_length=1)

    @field_validator("rubric")
    @classmethod
    def _rewards_something(cls, rubric: dict[str, float]) -> dict[str, float]:
        if not any(rubric.values()):
            raise ValueError("every weight is 0: give a part a weight")
        return rubric


class FileEnvironmentTask(EnvironmentTask):
    """Rows and environment of a file; see the module."""

    def __init__(self, config: Environment) -> None:
        file = load_task_file(config.path, is_of_run=config.digest is not None)
        settings = file_settings(file, EnvironmentSettings)
        floors = floors_by_name(
            settings.floor, tuple(settings.rubric), f"{file.path}: settings['floor']"
        )
        remedy = ": write settings = {{'floor': {{{part!r}: ...}}}} into the file"
        grader = make_grader(file, EpisodeRubric(settings.rubric, floors, remedy))
        fields, tools = inspect_environment(file, grader.factory)
        examples, self.digest = file_examples(file, config, settings, by_row=True)
        for rows in examples.values():
            _check_fields(file, rows, fields)
        super().__init__(
            config,
            grader,
            examples,
            metric=file_metric(file, settings.metric, settings.rubric),
            limits=EpisodeLimits(settings.max_turns, settings.max_new_tokens, settings.stop),
            tools=tool_prompt(tools),
        )


def _check_fields(file: TaskFile, rows: tuple[Example, ...], needed: list[str]) -> None:
    for example in rows:
        missing = [name for name in needed if name not in example.facts]
        if missing:
            raise GermlineError(
                f"{file.path}: reset() needs the field `{missing[0]}`, which the row of the prompt "
                f"{example.prompt[:60]!r} lacks; fields found: "
                f"{', '.join(f'`{name}`' for name in example.facts)}"
            )


def _with_tools(example: Example, tools: str) -> Example:
    """Describe the tools in the system message; without a chat, every message is in the prompt."""
    context = example.context
    if tools:
        system = [text for role, text in context if role == "system"]
        rest = [(role, text) for role, text in context if role != "system"]
        context = (("system", "\n\n".join([*system, tools])), *rest)
    if example.chat:
        return replace(example, context=context)
    texts = [text for _, text in context]
    return replace(example, prompt="\n\n".join([*texts, example.prompt]), context=())
