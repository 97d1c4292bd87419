"""Wordle: find a secret word in six guesses, with a mark for each letter of every guess.

The guess is what stands in the last brackets of a reply, `[crane]`; it must be a word of the list,
otherwise the turn is lost. The prompt and the messages are those of the guessing game that the nano
model was trained on: all guesses so far, each with its marks.

Parts of the reward: `marks`: 1 if the word was found, else the share of marks of the last valid
guess, with half a mark for Y; `valid`: the share of turns with a valid guess; `won`: 1 or 0.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from germline.environments.adapters import StepResult

MAX_GUESSES = 6

PARTS: Mapping[str, float] = {"marks": 1.0, "valid": 0.2, "won": 0.0}
"""Parts of the reward and their weights."""

_WORDS = """
apple beach black blame board bread break brick bring brown build chain chair chalk cheap chest
child clean clear climb clock cloud coast crane cream crowd dance dirty doubt dream dress drink
drive earth eight empty enjoy equal event every faith field fight flame floor fresh front fruit
glass globe grape grass green group guard guess happy heart heavy honey horse hotel house human
image juice knife large laugh learn lemon light lucky lunch maple march match metal mixed money
month motor mouse mouth music night noise north ocean offer onion other paint panel paper party
peace phone piano pilot place plane plant plate point pound power price pride proud quick quiet
radio raise river robot rough round salad scale sharp sheep shelf shine shirt short skill slate
sleep slope small smile smoke snake solid south space spoon sport stage stone storm story sugar
sweet table teeth thick tiger toast tower track train trust truth uncle voice water wheat wheel
white woman world young
"""

WORDS: tuple[str, ...] = tuple(_WORDS.split())
"""Common words of five letters: few, so that a model of a million parameters can learn them."""

_GUESS = re.compile(r"\[([A-Za-z]+)\]")


class Wordle:
    """One game, in which the words of the list may be guessed."""

    def __init__(self) -> None:
        self._secret = ""
        self._guesses: list[tuple[str, str]] = []
        self._turns = 0

    def reset(self, secret: str) -> None:
        """Begin a game for this secret word; the prompt is the first message."""
        self._secret = secret

    def step(self, reply: str) -> StepResult:
        """Mark the guess of a reply."""
        self._turns += 1
        guess = last_guess(reply)
        if guess in WORDS:
            self._guesses.append((guess, guess_feedback(guess, self._secret)))
        done = self._has_won or self._turns == MAX_GUESSES
        return StepResult(game_message(self._guesses), done)

    def get_reward(self) -> dict[str, float]:
        """Return the parts of the reward."""
        marks = self._guesses[-1][1] if self._guesses else ""
        value = (marks.count("G") + 0.5 * marks.count("Y")) / len(self._secret)
        valid = len(self._guesses) / self._turns if self._turns else 0.0
        return {"marks": value, "valid": valid, "won": float(self._has_won)}

    @property
    def _has_won(self) -> bool:
        return bool(self._guesses) and self._guesses[-1][0] == self._secret


def last_guess(reply: str) -> str:
    """Return what the last brackets of a reply hold, in lower case; empty without brackets."""
    found = _GUESS.findall(reply)
    return str(found[-1]).lower() if found else ""


@lru_cache(maxsize=1 << 16)
def guess_feedback(guess: str, secret: str) -> str:
    """Mark each letter: G right place, Y elsewhere in the word, X not (or no more) in it."""
    marks = ["G" if g == s else "X" for g, s in zip(guess, secret, strict=True)]
    left = [s for s, mark in zip(secret, marks, strict=True) if mark == "X"]
    for place, letter in enumerate(guess):
        if marks[place] == "X" and letter in left:
            marks[place] = "Y"
            left.remove(letter)
    return "".join(marks)


def game_message(guesses: Sequence[tuple[str, str]]) -> str:
    """Return the user message of a turn: earlier guesses, each with its marks."""
    lines = [f"{' '.join(guess)}: {' '.join(marks)}" for guess, marks in guesses]
    return "\n".join(["Guess the secret word of 5 letters.", *lines])
