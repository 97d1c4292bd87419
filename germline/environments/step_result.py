"""What `step` of an environment returns: the next message, whether the episode ended, rewards."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from germline.graders.worker_messages import InvalidGradeError

LONGEST_SHOWN = 200
"""Characters of a wrong value that an error shows."""


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
    """Return what `step` returned as a `StepResult`.

    Raises:
        InvalidGradeError: it is something else.
    """
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

    Raises:
        InvalidGradeError: it is no text, or holds half of a surrogate pair, which no tokenizer
            reads.
    """
    if value is not None and not isinstance(value, str):
        raise InvalidGradeError(
            f"must return the message to the model from {method} as text or None, returned "
            f"{shown(value)}"
        )
    if value and not is_unicode(value):
        raise InvalidGradeError(
            f"must return valid Unicode text as the message to the model from {method}, returned "
            f"{ascii(value)[:LONGEST_SHOWN]}, which holds half of a surrogate pair: replace it "
            "with text.encode(errors='replace').decode()"
        )
    return value or ""


def is_unicode(text: str) -> bool:
    """Whether a text has a UTF-8 form: halves of surrogate pairs have none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """Return a wrong value as an error shows it."""
    return repr(value)[:LONGEST_SHOWN]
