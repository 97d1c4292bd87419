"""The parts that `task.scorers` adds to the rubric of any task."""

import copy
from collections.abc import Mapping

from germline.config.tasks import TaskBase
from germline.protocols import Task
from germline.types import GermlineError


def add_scorer_parts(task: Task, config: TaskBase) -> Task:
    """Return the task with a part for each scorer; unchanged without scorers.

    A part of a scorer has no floor: a completion that it cannot score is missing.

    Raises:
        GermlineError: a scorer has the name of a part that the task has.
    """
    if not config.scorers:
        return task
    for name in config.scorers:
        if name in task.rubric:
            raise GermlineError(
                f"task.scorers.{name}: the task has a reward {name!r} already: give the scorer "
                "another name"
            )
    changed = copy.copy(task)
    scored = {name: scorer.weight for name, scorer in config.scorers.items()}
    changed.rubric = {**task.rubric, **scored}
    return changed


def heaviest_part(weights: Mapping[str, float]) -> str:
    """Return the part of largest weight."""
    return max(weights, key=lambda name: abs(weights[name]))
