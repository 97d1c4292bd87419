"""Guess a number: the environment answers `higher` or `lower` until the number is found.

The number is drawn from the seed of the episode, so every generation has new ones, the same for all
of its members. The guess is what stands in the last brackets of a reply, `[50]`.

Parts of the reward: `found`: 1 or 0; `close`: 1 minus the distance of the last valid guess, as a
share of the largest number.
"""

import re
from collections.abc import Mapping
from random import Random

from germline.environments.adapters import StepResult

PARTS: Mapping[str, float] = {"found": 1.0, "close": 0.1}
"""Parts of the reward and their weights."""

_GUESS = re.compile(r"\[(\d{1,9})\]")


class GuessNumber:
    """One game."""

    def __init__(self) -> None:
        self._secret = self._largest = 0
        self._last: int | None = None

    def reset(self, game: int, largest: int, seed: int) -> None:
        """Think of a number; games of the same seed have different ones."""
        self._largest = largest
        self._secret = Random(f"{seed}/{game}").randint(1, largest)

    def step(self, reply: str) -> StepResult:
        """Compare the guess of a reply with the number."""
        found = _GUESS.findall(reply)
        guess = int(found[-1]) if found else 0
        if not 1 <= guess <= self._largest:
            return StepResult(f"Write a number from 1 to {self._largest} in brackets.", done=False)
        self._last = guess
        return StepResult("higher" if guess < self._secret else "lower", guess == self._secret)

    def get_reward(self) -> dict[str, float]:
        """Return the parts of the reward."""
        if self._last is None:
            return {"found": 0.0, "close": 0.0}
        distance = abs(self._last - self._secret)
        return {"found": float(not distance), "close": 1 - distance / self._largest}


def game_prompt(largest: int) -> str:
    """Return the prompt of a game."""
    return (
        f"I think of a whole number from 1 to {largest}. Guess it: write a number in brackets, "
        f"such as [{(largest + 1) // 2}]. I answer `higher` or `lower`."
    )
