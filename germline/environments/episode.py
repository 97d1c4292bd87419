"""One episode that is being played: an instance of an environment, and the rewards so far."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from germline.environments.adapters import StepResult, adapt
from germline.errors import shown
from germline.graders.reward_functions import exception_text
from germline.graders.worker_messages import (
    CAUSED_BY_CODE,
    GradeMissingError,
    InvalidGradeError,
    PartsFailedError,
    TimeUp,
    restart_step,
)

NOT_BY_THE_REPLY = (MemoryError, InvalidGradeError, GradeMissingError)
"""Exceptions of an environment that do not count against the model."""


@dataclass(frozen=True)
class EpisodeRubric:
    """The parts of the reward of an episode, and their weights."""

    weights: Mapping[str, float]
    floors: Mapping[str, float]
    """The worst values; a part that the environment never gives has its floor."""

    def by_part(self, rewards: Any) -> dict[str, float]:
        """Return rewards by part: one number is the only part, or the part `reward`."""
        if rewards is None:
            return {}
        if not isinstance(rewards, Mapping):
            part = next(iter(self.weights)) if len(self.weights) == 1 else "reward"
            rewards = {part: rewards}
        for part, value in rewards.items():
            if part not in self.weights:
                raise InvalidGradeError(
                    f"gave the reward {part!r} ({shown(value)}), which is not in the rubric "
                    f"({', '.join(self.weights)}): add it with weight 0 if it is only to be "
                    "reported"
                )
        return {part: _number(part, value) for part, value in rewards.items()}

    def with_floors(self, parts: Mapping[str, float]) -> dict[str, float]:
        """Return all parts, with the floor of each part that was not given."""
        return {part: parts.get(part, self.floors[part]) for part in self.weights}


class Episode:
    """A live environment and what it was given: `observation` is its last message to the model."""

    def __init__(
        self, factory: Callable[[], Any], rubric: EpisodeRubric, row: Mapping[str, Any], seed: int
    ) -> None:
        self.row = row
        self._rubric = rubric
        self._parts: dict[str, float] = {}
        restart_step()
        try:
            self._environment = adapt(factory())
            try:
                self.observation = self._environment.reset(copy.deepcopy(dict(row)), seed)
            except BaseException:
                self.close()
                raise
        except NOT_BY_THE_REPLY:
            raise
        except (TimeUp, *CAUSED_BY_CODE) as error:
            reset = getattr(factory, "reset", factory)
            raise InvalidGradeError(
                f"fails in reset(), which no reply can cause: {exception_text(reset, error)}"
            ) from error

    def step(self, reply: str) -> StepResult:
        """Give the environment the next reply of the model.

        Where it raises an exception, or a reward is NaN or infinite, all parts earn their floors.
        """
        restart_step()
        with self._reply_failures("step"):
            result = self._environment.step(reply)
            self._add(result.rewards)
        self.observation = result.observation or ""
        return result

    def end(self, *, is_done: bool) -> Mapping[str, float]:
        """Close the environment, which has ended the episode or is cut; return all parts."""
        with self._reply_failures("get_reward"):
            rewards = self._environment.final_rewards()
            self._add(rewards)
        self.close()
        is_missing = rewards is None and self._environment.has_final_rewards
        if not self._parts and (is_done or is_missing):
            raise InvalidGradeError(
                f"has no reward for an episode that {'has ended' if is_done else 'was cut'}: no "
                "step gave one, and neither did get_reward() or the attribute `reward`. Give a "
                "number, or {} where an episode that was cut earns the floor"
            )
        return self._rubric.with_floors(self._parts)

    def close(self) -> None:
        """Release what the environment holds."""
        self._environment.close()

    @contextlib.contextmanager
    def _reply_failures(self, method: str) -> Iterator[None]:
        """Close the environment where it fails; what a reply may have caused earns the floor."""
        try:
            yield
        except BaseException as error:
            self.close()
            is_of_code = isinstance(error, CAUSED_BY_CODE)
            if not is_of_code or isinstance(error, (*NOT_BY_THE_REPLY, PartsFailedError)):
                raise
            function = getattr(self._environment.environment, method, None)
            raise PartsFailedError({}, f"{method}(): {exception_text(function, error)}") from error

    def _add(self, rewards: Any) -> None:
        for part, value in self._rubric.by_part(rewards).items():
            self._parts[part] = self._parts.get(part, 0.0) + value
        for part, value in self._parts.items():
            if not math.isfinite(value):  # the model's replies may have caused it
                raise PartsFailedError(
                    {},
                    f"the reward {part!r} is {value:g}: step() and get_reward() must give finite "
                    "numbers whatever the model replies",
                )


def _number(part: str, value: Any) -> float:
    """Return a reward as a number, which may be NaN or infinite."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        raise InvalidGradeError(
            f"must give a finite number as the reward {part!r}, gave {shown(value)}: correct "
            "step() or get_reward(), or leave a part without a value out"
        ) from None
