"""One row of a check of a task: what was tried, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from germline.protocols import EpisodeTask, Task
from germline.types import Example

Verdict = Literal["ok", "warning", "wrong"]

LONGEST_SHOWN = 60
"""Characters of a completion that a remark shows."""


@dataclass(frozen=True)
class TaskCheckRow:
    """One row of a check: what was tried, how often, the rewards it earned, and the verdict.

    Attributes:
        text: the whole of the hostile text that earns as much as a gold answer; None for any
            other row. The remark shows its beginning.
    """

    tried: str
    count: int
    rewards: tuple[float, ...]
    verdict: Verdict
    remark: str
    text: str | None = None


def examples_row(task: Task) -> TaskCheckRow:
    """Count the examples of a task, and warn of prompts that are in both splits."""
    train, test = task.examples("train"), task.examples("test")

    def counted(split: Sequence[Example], name: str) -> str:
        different = len(_contents(task, split))
        some = "" if different == len(split) else f" (different prompts: {different})"
        return f"{len(split)} {name}{some}"

    both = prompts_in_both(task)
    remark = f"{counted(train, 'to train')}, {counted(test, 'held out')}"
    if both:
        remark += f"; {len(both)} prompts are in both, such as {short_text(both[0])}"
    return TaskCheckRow("examples", len(train) + len(test), (), "warning" if both else "ok", remark)


def prompts_in_both(task: Task) -> list[str]:
    """Return the held-out prompts that are also trained on, each once and sorted."""
    trained = _contents(task, task.examples("train"))
    held_out = _contents(task, task.examples("test"))
    return sorted({held_out[content].prompt for content in held_out.keys() & trained.keys()})


def _contents(task: Task, examples: Sequence[Example]) -> dict[str, Example]:
    """Return different examples by prompt; those of an environment, whose rows say more, by row."""
    if isinstance(task, EpisodeTask):
        return {repr((one.prompt, one.facts)): one for one in examples}
    return {repr((one.context, one.prompt)): one for one in examples}


def short_text(text: str) -> str:
    """Return the beginning of a completion, quoted."""
    if len(text) <= LONGEST_SHOWN:
        return repr(text)
    return f"{text[:LONGEST_SHOWN]!r} and {len(text) - LONGEST_SHOWN:,} more characters"
