"""Tasks of episodes in an environment: of a Python file, and wordle and guess_number.

The file defines a class with `reset`, `train` (and perhaps `test`), and an optional mapping
`settings` with what `EnvironmentSettings` lists. docs/environments.md shows one. The rows are read
here, in the main process; the environment runs in grader workers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from germline.config import Environment, EpisodeSettings
from germline.config import GuessNumber as GuessNumberConfig
from germline.config import Wordle as WordleConfig
from germline.environments import guess_number, wordle
from germline.environments.episode import EpisodeRubric
from germline.environments.grader import (
    EnvironmentGrader,
    SingleReplyGrader,
    inspect_environment,
    make_grader,
)
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
            *(config, SingleReplyGrader(grader), rubric.weights, rubric.floors),
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


_Row = tuple[str, str, Mapping[str, object]]
"""Prompt, gold reply, and the row that `reset` gets."""


class WordleTask(EnvironmentTask):
    """Games with a secret word each; the words of the held-out games are not trained on."""

    def __init__(self, config: WordleConfig) -> None:
        words = wordle.WORDS if config.words is None else read_words(config.words)
        prompt = wordle.game_message((), len(words[0]))
        rows: list[_Row] = [(prompt, f"[{word}]", {"secret": word}) for word in words]
        sides = seeded_split(rows, words, config.split_seed, "wordle")
        super().__init__(
            config,
            _grader("wordle", wordle.WordleGames(frozenset(words)), wordle.PARTS),
            _examples(config, sides),
            max_turns=wordle.MAX_GUESSES,
            max_new_tokens=64,
        )


class GuessNumberTask(EnvironmentTask):
    """Games whose number is drawn anew in every generation."""

    def __init__(self, config: GuessNumberConfig) -> None:
        largest = config.largest
        prompt = guess_number.game_prompt(largest)
        rows: list[_Row] = [(prompt, "", {"game": game, "largest": largest}) for game in range(128)]
        super().__init__(
            config,
            _grader("guess_number", guess_number.GuessNumber, guess_number.PARTS),
            _examples(config, (rows[:64], rows[64:])),
            max_turns=largest.bit_length(),
            max_new_tokens=32,
        )


def read_words(path: Path) -> tuple[str, ...]:
    """Read a list of words, one per line; empty lines are skipped."""
    try:
        words = path.read_text(encoding="utf-8").lower().split()
    except (OSError, UnicodeDecodeError) as error:
        raise GermlineError(f"task.words: {str(path)!r} cannot be read: {error}") from None
    wrong = [
        word
        for word in words
        if not (word.isascii() and word.isalpha() and len(word) == len(words[0]))
    ]
    if wrong or not words:
        raise GermlineError(
            f"task.words: {path} must hold words of letters (a to z), each as long as the first "
            f"one, found {wrong[:1]!s:.60}"
        )
    return tuple(dict.fromkeys(words))


def _grader(
    name: str, factory: Callable[[], Any], weights: Mapping[str, float]
) -> EnvironmentGrader:
    return EnvironmentGrader(name, factory, EpisodeRubric(weights, dict.fromkeys(weights, 0.0)))


def _examples(config: EpisodeSettings, sides: tuple[list[_Row], list[_Row]]) -> Examples:
    chat = config.sends_chats
    return SplitTask.by_split(
        sides, lambda index, row: Example(index, row[0], row[1], chat, row[2])
    )
