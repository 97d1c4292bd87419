"""The two shapes of an environment behind one interface: `step(reply)`, or methods as tools.

`StepResult` is what `step` returns: the next message, whether the episode ended, rewards.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from germline.environments.tools import answer_calls, find_tools, is_unicode
from germline.errors import shown
from germline.graders.reward_functions import await_result, exception_text
from germline.graders.worker_messages import CAUSED_BY_CODE, InvalidGradeError, TimeUp, restart_step

log = logging.getLogger(__name__)

_WARNED_OF: set[tuple[str, str]] = set()
"""(class, exception) of each failure of `close()` that the log has."""


class StepResult(NamedTuple):
    """The answer of an environment to a reply of the model; a plain tuple of the three will do.

    Attributes:
        observation: the next message to the model; it is not sent when the episode is done.
        done: whether the episode has ended.
        rewards: values by part of the rubric, or one number; None: no reward in this step. Rewards
            of the same part add up over the steps.
    """

    observation: str | None
    done: bool
    rewards: Mapping[str, float] | float | None = None


def check_step_result(value: Any) -> StepResult:
    """Return what `step` returned as a `StepResult`; anything else is an `InvalidGradeError`."""
    if not isinstance(value, tuple) or len(value) != len(StepResult._fields):
        raise InvalidGradeError(
            f"must return StepResult(observation, done, rewards) from step(), returned "
            f"{shown(value)}"
        )
    result = StepResult(*value)
    if type(result.done).__name__ not in ("bool", "bool_"):
        raise InvalidGradeError(
            f"must return True or False as `done` from step(), returned {shown(result.done)}: the "
            "order is StepResult(observation, done, rewards)"
        )
    if not result.done:
        check_message("step()", result.observation)
    return result


def check_message(method: str, value: Any) -> str:
    """Return a message to the model; None is an empty one.

    No tokenizer reads half of a surrogate pair.
    """
    if value is not None and not isinstance(value, str):
        raise InvalidGradeError(
            f"must return the message to the model from {method} as text or None, returned "
            f"{shown(value)}"
        )
    if value and not is_unicode(value):
        raise InvalidGradeError(
            f"must return valid Unicode text as the message to the model from {method}, returned "
            f"{shown(value)}"
        )
    return value or ""


class StepAdapter:
    """An instance of an environment with `reset(**row)` and `step(reply)`."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment

    def reset(self, row: Mapping[str, Any], seed: int) -> str:
        """Begin the episode; return the message that follows the prompt, empty without one.

        `reset` gets the fields of the row that it names, all of them if it takes `**row`, and the
        seed if it names `seed` and the row has no such field.
        """
        reset = self.environment.reset
        named = inspect.signature(reset).parameters
        given = {"seed": seed, **row} if "seed" in named else dict(row)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in named.values()):
            given = {name: value for name, value in given.items() if name in named}
        return check_message("reset()", await_result(reset(**given)))

    def step(self, reply: str) -> StepResult:
        """Answer a reply of the model."""
        return check_step_result(await_result(self.environment.step(reply)))

    @property
    def has_final_rewards(self) -> bool:
        """Whether every episode has rewards at its end, also one that is cut."""
        return hasattr(self.environment, "get_reward")

    def final_rewards(self) -> Any:
        """Return what `get_reward` says at the end of the episode; None where it is not defined."""
        get_reward = getattr(self.environment, "get_reward", None)
        return await_result(get_reward()) if get_reward else None

    def close(self) -> None:
        """Release what the environment holds, if it has a method for it, in the time of a step.

        A `close()` that hangs or fails costs no episode its score. The log says so once for every
        class and type of exception; that of a grader process is in the run's `graders.log`.
        """
        close = getattr(self.environment, "close", None)
        if close is None:
            return
        restart_step()
        try:
            await_result(close())
        except (TimeUp, *CAUSED_BY_CODE) as error:
            restart_step()  # what follows has a time limit too
            named = type(self.environment).__qualname__, type(error).__name__
            if named not in _WARNED_OF:
                _WARNED_OF.add(named)
                log.warning(
                    "the environment %s: close() fails: %s; the score of the episode stands, but "
                    "what close() does not release stays in the grader process",
                    *(named[0], exception_text(close, error)),
                )


class ToolAdapter(StepAdapter):
    """An environment of TRL's shape: `reset(**row)`, public methods as tools, `get_reward()`.

    A reply without a tool call ends the episode.
    """

    has_final_rewards = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.tools = find_tools(environment)

    def step(self, reply: str) -> StepResult:
        """Make the tool calls of a reply; their results are the next message."""
        responses = answer_calls(reply, self.tools)
        if responses is None:
            return StepResult(None, done=True)
        # A tool may be asked for half of a surrogate pair, `chr(0xD800)`; no tokenizer reads it.
        return StepResult(responses.encode(errors="replace").decode(), done=False)

    def final_rewards(self) -> Any:
        """Return `get_reward()`, or the attribute `reward`, which TRL's reward functions read."""
        if hasattr(self.environment, "get_reward"):
            return super().final_rewards()
        try:
            return self.environment.reward
        except AttributeError:
            raise InvalidGradeError(
                "must have a method get_reward() that returns a number, or numbers by part"
            ) from None


def adapt(environment: Any) -> StepAdapter:
    """Return an environment of either shape behind the interface of both."""
    has_step = callable(getattr(environment, "step", None))
    return StepAdapter(environment) if has_step else ToolAdapter(environment)


def required_fields(reset: Callable[..., Any]) -> list[str]:
    """Name the fields that every row must have for a `reset`."""
    return [
        parameter.name
        for parameter in inspect.signature(reset).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name != "seed"
    ]
