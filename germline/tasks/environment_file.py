"""A task made of a Python file with an environment: its rows, its class, and its settings.

The file defines a class with `reset`, `train` (and perhaps `test`), and an optional mapping
`settings` with what `EnvironmentSettings` lists. docs/environments.md shows one. The rows are read
here, in the main process; the environment runs in grader workers.
"""

from pydantic import Field, field_validator

from germline.config import Environment
from germline.environments.environment_file import inspect_environment, make_grader
from germline.environments.episode import EpisodeRubric
from germline.environments.tools import tool_prompt
from germline.graders.reward_functions import floors_by_name
from germline.graders.task_file import TaskFile, load_task_file
from germline.tasks.environment_task import EnvironmentTask, EpisodeLimits
from germline.tasks.python_file import FileSettings, file_examples, file_metric, file_settings
from germline.types import Example, GermlineError

MAX_TURNS = 10


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
