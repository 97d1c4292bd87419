"""Environments that do what environments must not, as the reply demands; workers import them."""

import asyncio
import time

from tests.misbehaving_graders import MISDEEDS


class Obedient:
    """Does what a reply says; ends with `end`."""

    def reset(self, word: str, seed: int) -> str:
        """Begin."""
        if word in MISDEEDS:
            MISDEEDS[word]("at reset")
        return f"{word} {seed}"

    def step(self, reply: str) -> tuple[str, bool, float]:
        """Do what the reply says."""
        name, _, rest = reply.partition(" ")
        if name in MISDEEDS:
            MISDEEDS[name](rest)
        return f"after {reply}", reply == "end", 0.25


class Slow(Obedient):
    """Takes a while for every step."""

    def step(self, reply: str) -> tuple[str, bool, float]:
        """Wait, then step."""
        time.sleep(0.5)
        return super().step(reply)


class Sleeper:
    """An async environment that may sleep for longer than the limit."""

    async def reset(self) -> None:
        """Begin."""

    async def step(self, reply: str) -> tuple[str, bool, float]:
        """Sleep for so many seconds."""
        await asyncio.sleep(float(reply))
        return "slept", False, 0.25


class Unclosable(Obedient):
    """Does in `close` what the row says; the episode goes on for one reply."""

    def reset(self, word: str, seed: int) -> str:
        """Begin."""
        self.word = word
        return f"{word} {seed}"

    def close(self) -> None:
        """Hang, or fail."""
        MISDEEDS[self.word]("at close")
