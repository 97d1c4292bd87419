"""Scorers: models and services that score completions, many members in one batch.

A task names its scorers in `task.scorers`. Each one adds a part to the rubric of the task. A scorer
takes many completions at once, which a grader in a worker process cannot, and its failures are not
the model's: a completion that cannot be scored has a missing reward (NaN and a reason), never 0.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from germline.config.scorers import TEMPLATES
from germline.types import Example

Item = tuple[str, Example]
"""A completion's text and the example it answers."""

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one completion; `missing` says why the value is NaN."""

    value: float
    missing: str | None = None


class NotScoredError(Exception):
    """A completion or a whole batch cannot be scored; the message is the reason."""


class Scorer:
    """Scores batches of completions; several threads call it at the same time.

    Attributes:
        batch_size: most completions per call.
        concurrency: most calls at the same time.
    """

    batch_size: int = 1
    concurrency: int = 1

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Score completions of any members; what cannot be scored is missing.

        Raises:
            NotScoredError: nothing of the batch can be scored.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End requests that wait, where there are some."""


def missing(reason: str) -> Score:
    """Return a missing score."""
    return Score(math.nan, reason)


def sendable(text: str) -> str:
    """Return the text without halves of surrogate pairs, which no tokenizer reads."""
    return text.encode("utf-8", "replace").decode("utf-8")


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Write the values into a template, or one of `TEMPLATES` by its name; other braces stay."""
    text = TEMPLATES.get(template, template)
    # In one pass: a prompt or response may itself contain the name of a field in braces.
    return _FIELD.sub(lambda mark: sendable(values.get(mark.group(1), mark.group())), text)


def full_prompt(example: Example) -> str:
    """Return the prompt, after the messages before it, one per line."""
    return "\n".join([*(content for _, content in example.context), example.prompt])


def scored_text(template: str, response: str, example: Example) -> str:
    """Return the text to score for a response."""
    return fill_template(template, {"prompt": full_prompt(example), "response": response})
