"""The tasks of the environments that come with germline: wordle, guess_number and calculator."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from germline.config import Calculator as CalculatorConfig
from germline.config import EpisodeSettings
from germline.config import GuessNumber as GuessNumberConfig
from germline.config import Wordle as WordleConfig
from germline.environments import calculator, guess_number, wordle
from germline.environments.episode import EpisodeRubric
from germline.environments.grader import EnvironmentGrader
from germline.environments.tools import find_tools, tool_prompt
from germline.tasks.environment_task import EnvironmentTask, EpisodeLimits
from germline.tasks.splits import seeded_split
from germline.types import Example, GermlineError, Split

GAMES: Mapping[Split, range] = {"train": range(64), "test": range(64, 128)}
"""Numbers of the games of `guess_number`; the secret number follows from game and seed."""


class WordleTask(EnvironmentTask):
    """Games with a secret word each; the words of the held-out games are not trained on."""

    def __init__(self, config: WordleConfig) -> None:
        words = wordle.WORDS if config.words is None else read_words(config.words)
        prompt = wordle.game_message((), len(words[0]))
        rows = [(prompt, f"[{word}]", {"secret": word}) for word in words]
        train, test = seeded_split(rows, words, config.split_seed, "wordle")
        super().__init__(
            config,
            _grader("wordle", wordle.WordleGames(frozenset(words)), wordle.PARTS),
            {"train": _examples(config, train), "test": _examples(config, test)},
            metric="marks",
            limits=EpisodeLimits(max_turns=wordle.MAX_GUESSES, max_new_tokens=64),
        )


class GuessNumberTask(EnvironmentTask):
    """Games whose number is drawn anew in every generation."""

    def __init__(self, config: GuessNumberConfig) -> None:
        largest = config.largest
        prompt = guess_number.game_prompt(largest)
        super().__init__(
            config,
            _grader("guess_number", guess_number.GuessNumber, guess_number.PARTS),
            {
                split: _examples(
                    config, [(prompt, "", {"game": game, "largest": largest}) for game in games]
                )
                for split, games in GAMES.items()
            },
            metric="found",
            limits=EpisodeLimits(max_turns=largest.bit_length(), max_new_tokens=32),
        )


class CalculatorTask(EnvironmentTask):
    """Expressions a * b + c, to be computed with two tools."""

    def __init__(self, config: CalculatorConfig) -> None:
        expressions = list(product(range(2, 13), range(2, 13), range(1, 21)))
        rows = [
            (calculator.expression_prompt(a, b, c), str(a * b + c), {"a": a, "b": b, "c": c})
            for a, b, c in expressions
        ]
        train, test = seeded_split(rows, expressions, config.split_seed, "calculator")
        super().__init__(
            config,
            _grader("calculator", calculator.Calculator, calculator.PARTS),
            {"train": _examples(config, train), "test": _examples(config, test)},
            metric="correct",
            limits=EpisodeLimits(max_turns=4, max_new_tokens=128),
            tools=tool_prompt(find_tools(calculator.Calculator())),
        )


def read_words(path: Path) -> tuple[str, ...]:
    """Read a list of words, one per line; empty lines are skipped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GermlineError(
            f"task.words: {str(path)!r} cannot be read: {error}; give a text file with one word "
            "per line"
        ) from None
    words = [line.strip().lower() for line in lines if line.strip()]
    for number, line in enumerate(lines, start=1):
        word = line.strip()
        if word and not (word.isascii() and word.isalpha() and len(word) == len(words[0])):
            raise GermlineError(
                f"task.words: {path}, line {number}: {word[:40]!r} is not a word of "
                f"{len(words[0])} letters (a to z), as the first word of the file"
            )
    return tuple(dict.fromkeys(words))


def _grader(
    name: str, factory: Callable[[], Any], weights: Mapping[str, float]
) -> EnvironmentGrader:
    return EnvironmentGrader(name, factory, EpisodeRubric(weights, dict.fromkeys(weights, 0.0)))


def _examples(
    config: EpisodeSettings, rows: Sequence[tuple[str, str, Mapping[str, object]]]
) -> tuple[Example, ...]:
    """Make examples of (prompt, gold reply, row)."""
    chat = config.sends_chats
    return tuple(
        Example(index, prompt, answer, chat, row)
        for index, (prompt, answer, row) in enumerate(rows)
    )
