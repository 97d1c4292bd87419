"""Tasks of episodes in an environment: of a Python file, and wordle.

The file defines a class with `reset`, `train` (and perhaps `test`), and an optional mapping
`settings` with what `EnvironmentSettings` lists. docs/environments.md shows one. The rows are read
here, in the main process; the environment runs in grader workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, field_validator

from germline.config import Environment, EpisodeSettings
from germline.config import Wordle as WordleConfig
from germline.environments import wordle
from germline.environments.episode import EpisodeRubric
from germline.environments.grader import EnvironmentGrader, inspect_environment, make_grader
from germline.environments.tools import tool_prompt, with_tools
from germline.graders.reward_functions import floors_by_name
from germline.graders.task_file import load_task_file
from germline.protocols import EpisodeGrader
from germline.tasks.python_file import FileSettings, file_examples, file_metric, file_settings
from germline.tasks.row_files import fields_found
from germline.tasks.splits import SplitTask, seeded_split
from germline.types import Example, GermlineError, Split

MAX_TURNS = 10

Examples = Mapping[Split, Sequence[Example]]


class EnvironmentTask(SplitTask):
    """Rows, and the environment in which the model plays them.

    Args:
        config: the section, which overrides the limits.
        grader: plays the environment; its `rubric` has the parts of the reward.
        examples: by split; their facts are the rows that `reset` gets.
        metric: the part of the reward that held-out scores report; default: the heaviest one.
        max_turns: limit of the model's turns in an episode.
        max_new_tokens: longest reply.
        stop: strings that end a reply.
        tools: description of the tools, which the model reads before the prompt.
    """

    def __init__(  # noqa: PLR0913 - the limits of an episode among them
        self,
        config: EpisodeSettings,
        grader: Any,
        examples: Examples,
        *,
        metric: str | None = None,
        max_turns: int,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        tools: str = "",
    ) -> None:
        rubric: EpisodeRubric = grader.rubric
        super().__init__(
            *(config, grader, rubric.weights, rubric.floors),
            metric=metric,
            max_new_tokens=max_new_tokens,
            stop=stop,
        )
        self.has_tools = bool(tools)
        self.episode_grader: EpisodeGrader = grader
        self.max_turns = config.max_turns or max_turns
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
        grader = make_grader(file, EpisodeRubric(settings.rubric, floors))
        fields, tools = inspect_environment(file, grader.factory)
        examples, self.digest = file_examples(file, config, settings, by_row=True)
        for example in (*examples["train"], *examples["test"]):
            if missing := {*fields} - {*example.facts}:
                raise GermlineError(
                    f"{file.path}: reset() needs the field `{min(missing)}`, which the row of the "
                    f"prompt {example.prompt[:60]!r} lacks; {fields_found(example.facts)}"
                )
        super().__init__(
            config,
            grader,
            examples,
            metric=file_metric(file, settings.metric, settings.rubric),
            max_turns=settings.max_turns,
            max_new_tokens=settings.max_new_tokens,
            stop=settings.stop,
            tools=tool_prompt(tools),
        )


def _with_tools(example: Example, tools: str) -> Example:
    """Describe the tools in the system message; without a chat, every message is in the prompt."""
    context = with_tools(example.context, tools) if tools else example.context
    if example.chat:
        return replace(example, context=context)
    texts = [text for _, text in context]
    return replace(example, prompt="\n\n".join([*texts, example.prompt]), context=())


class WordleTask(EnvironmentTask):
    """Games with a secret word each; the words of the held-out games are not trained on."""

    def __init__(self, config: WordleConfig) -> None:
        parts = wordle.PARTS
        sides = seeded_split(wordle.WORDS, wordle.WORDS, config.split_seed, "wordle")
        prompt, chat = wordle.game_message(()), config.sends_chats
        super().__init__(
            config,
            EnvironmentGrader(
                "wordle", wordle.Wordle, EpisodeRubric(parts, dict.fromkeys(parts, 0.0))
            ),
            self.by_split(
                sides,
                lambda index, word: Example(index, prompt, f"[{word}]", chat, {"secret": word}),
            ),
            max_turns=wordle.MAX_GUESSES,
            max_new_tokens=64,
        )
