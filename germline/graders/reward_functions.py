"""Reward functions of a user, of two signatures, as a grader: a rubric of weighted functions.

    reward(completion, example)                   -> number; `example` is the row, a dictionary
    reward(completions, prompts=..., **columns)   -> list of numbers or None, as in TRL

A function that has a parameter `completions` has the signature of TRL. It is called with lists of
one element: the completion, its prompt, and each field of the row that the function names (all of
them where it takes `**kwargs`). Where the prompt is a list of messages, the completion is one as
well, as in TRL. `None` says that a reward does not apply to a row: it adds 0 to the sum, and where
all functions of a weight say so, the reward of the completion is missing. Both kinds of function
may be `async`.

A function that raises an exception earns its floor; the other functions keep their values. A
timeout, lack of memory and the death of the worker process concern the whole completion: all
functions then earn their floors.
"""

import asyncio
import copy
import inspect
import math
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from germline.errors import GermlineError, shown
from germline.example import Example
from germline.graders.worker_messages import (
    CAUSED_BY_CODE,
    GradeMissingError,
    InvalidGradeError,
    PartsFailedError,
    as_number,
)
from germline.registry import did_you_mean

RewardFunction = Callable[..., Any]
"""A function of one of the two signatures."""

Rewards = RewardFunction | Sequence[RewardFunction] | Mapping[RewardFunction, float]
"""One function, several of weight 1, or functions with their weights."""

NOT_COLUMNS = ("prompt", "completion")
"""Fields of a row that TRL does not pass as columns, because `prompts` and `completions` are."""

DOES_NOT_APPLY = object()
"""What a function of TRL's signature says of a row by `None`."""

LONGEST_MESSAGE = 200
"""Characters of an exception's message that are kept in the reason of a failure."""


@dataclass(frozen=True)
class FunctionRubric:
    """Weighted reward functions as a grader.

    Attributes:
        functions: by name, as `weights` and `floors`, the worst values that they may return.
        is_only_reward: whether nothing else rewards a completion, such as a scorer.
    """

    functions: Mapping[str, RewardFunction] = field(compare=False, repr=False)
    weights: Mapping[str, float]
    floors: Mapping[str, float]
    is_only_reward: bool = field(default=True, kw_only=True)

    @property
    def described(self) -> str:
        """The name of the grader in messages, which name the function that is at fault."""
        if len(self.functions) == 1:
            return "the reward"
        return f"the reward {', '.join(f'{name}()' for name in self.functions)}"

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return the value of every function; each function gets its own copy of the row."""
        values: dict[str, Any] = {}
        applies = not self.is_only_reward
        failures: list[str] = []
        for name, function in self.functions.items():
            try:
                value = call_reward(function, text, self._row(example), example.prompt)
            except (MemoryError, InvalidGradeError):
                raise
            except CAUSED_BY_CODE as error:
                named = f"{name}(): " if len(self.functions) > 1 else ""
                failures.append(f"{named}{exception_text(function, error)}")
            else:
                values[name] = 0.0 if value is DOES_NOT_APPLY else value
                applies |= value is not DOES_NOT_APPLY and self.weights[name] != 0
        if failures:
            raise PartsFailedError(values, "; ".join(failures))
        if not applies:
            weighted = [f"{name}()" for name, weight in self.weights.items() if weight]
            raise GradeMissingError(
                f"{' and '.join(weighted)} returned None, so nothing rewards this row: return a "
                "number for every row, or leave such rows out"
            )
        return values

    def _row(self, example: Example) -> dict[str, Any]:
        """Return a copy of the row of an example, with the prompt and the gold answer in it."""
        row = {"prompt": example.prompt}
        if example.answer:
            row["answer"] = example.answer
        return {**row, **copy.deepcopy(dict(example.facts))}


def call_reward(function: RewardFunction, text: str, row: Mapping[str, Any], prompt: str) -> object:
    """Call a function of either signature with one completion; it may be `DOES_NOT_APPLY`.

    A function with TRL's signature gets the prompt, where the row has none.
    """
    if not takes_lists(function):
        return await_result(function(text, row))
    asked = row.get("prompt", prompt)
    messages = isinstance(asked, list | tuple)
    completion: object = [{"role": "assistant", "content": text}] if messages else text
    columns = {name: [value] for name, value in row.items() if name not in NOT_COLUMNS}
    arguments = {**columns, "prompts": [asked], "completions": [completion]}
    parameters = inspect.signature(function).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        arguments = {name: arguments[name] for name in parameters if name in arguments}
    rewards = await_result(function(**arguments))
    try:
        (reward,) = [] if isinstance(rewards, str | Mapping) else list(rewards)
    except (TypeError, ValueError):
        raise InvalidGradeError(
            f"must return a list with one reward for each completion from {_name(function)}(), "
            f"returned {shown(rewards)} for 1 completion"
        ) from None
    return DOES_NOT_APPLY if reward is None else reward


def exception_text(function: object, error: BaseException) -> str:
    """Describe an exception: its type, its message, and the line of the function's file."""
    message = f": {str(error)[:LONGEST_MESSAGE]}" if str(error) else ""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    place = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}{message}{place}"


def takes_lists(function: RewardFunction) -> bool:
    """Whether a function has the signature of TRL: a parameter `completions`."""
    try:
        return "completions" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def weighted_functions(given: Any, place: str) -> dict[str, tuple[RewardFunction, float]]:
    """Return name -> (function, weight) of one function, a list, or a mapping to weights."""
    if isinstance(given, Mapping):
        weighted = list(given.items())
    else:
        several = isinstance(given, Sequence) and not isinstance(given, str)
        weighted = [(one, 1.0) for one in (given if several else [given])]
    if not weighted:
        raise GermlineError(f"{place}: found no reward function; give at least one")
    names = [_check(place, function, weight) for function, weight in weighted]
    if len(set(names)) < len(names):
        raise GermlineError(
            f"{place}: the reward functions must have different names, found {', '.join(names)} "
            "(a lambda is named reward): write them with def, under names of their own"
        )
    if not any(weight for _, weight in weighted):
        raise GermlineError(f"{place}: every weight is 0: give a function a weight")
    return {
        name: (function, float(weight))
        for name, (function, weight) in zip(names, weighted, strict=True)
    }


def floors_by_name(
    given: float | Mapping[str, float], names: Sequence[str], setting: str
) -> dict[str, float]:
    """Return the floor of every reward function: one number for all, or a number by name, else 0.

    Errors name the setting.
    """
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    for name in given:
        if name not in names:
            raise GermlineError(
                f"{setting} names {name!r}{did_you_mean(name, names)}, but the reward functions "
                f"are {', '.join(names)}"
            )
    return {name: given.get(name, 0.0) for name in names}


def _check(place: str, function: Any, weight: Any) -> str:
    """Return the name of a reward function whose signature and weight are right."""
    if not callable(function):
        raise GermlineError(
            f"{place}: a reward must be a function, found {repr(function)[:80]}: write it with "
            "def name(completion, example)"
        )
    name = _name(function)
    if not takes_lists(function):
        signature: object = "(...)"
        try:
            signature = inspect.signature(function)
            inspect.signature(function).bind("completion", {})
        except (TypeError, ValueError):
            raise GermlineError(
                f"{place}: {name}{signature} must take (completion, example): the text the model "
                "wrote and the row. A reward of TRL takes (completions, **kwargs), and its "
                "parameter must have that name"
            ) from None
    if isinstance(weight, bool) or not math.isfinite(as_number(weight)):
        raise GermlineError(f"{place}: the weight of {name} must be a number, found {weight!r}")
    return name


def _name(function: RewardFunction) -> str:
    """Name a function as a part of the rubric: a lambda and an object by their kind."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return "reward" if name == "<lambda>" else str(name)


def await_result(value: Any) -> Any:
    """Wait for what an async method returns; the value of any other method is returned.

    A coroutine that is interrupted (a timeout) is canceled when the loop runs the next time. Where
    this thread runs a loop already, another thread waits.
    """
    if not inspect.iscoroutine(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(value)
    thread = ThreadPoolExecutor(1)
    try:
        return thread.submit(_run, value).result()
    finally:
        thread.shutdown(wait=False)


_event_loop = cache(asyncio.new_event_loop)


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = _event_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        task.cancel()
        raise
