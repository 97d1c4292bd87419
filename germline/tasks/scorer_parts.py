"""The parts that `task.scorers` and `task.kl_coef` add to the rubric of any task."""

import copy
from collections.abc import Mapping

from germline.config.tasks import KL_PART, TaskBase
from germline.protocols import Task
from germline.types import GermlineError


def add_scorer_parts(task: Task, config: TaskBase) -> Task:
    """Return the task with a part for each scorer of its config, and one for the KL penalty.

    These parts have no floor: a completion that cannot be scored is missing.

    Raises:
        GermlineError: a part has the name of one that the task has.
    """
    scored = {name: scorer.weight for name, scorer in config.scorers.items()}
    if config.kl_coef is not None and KL_PART in {**task.rubric, **scored}:
        raise GermlineError(
            f"task.kl_coef={config.kl_coef:g} adds the part {KL_PART!r}, and the task has a reward "
            "or scorer of this name already: give that one another name"
        )
    for name in scored:
        if name in task.rubric:
            raise GermlineError(
                f"task.scorers.{name}: the task has a reward {name!r} already: give the scorer "
                "another name"
            )
    if config.kl_coef is not None:
        scored[KL_PART] = 0.0 - config.kl_coef
    changed = copy.copy(task)
    changed.rubric = {**task.rubric, **scored}
    return changed


def heaviest_part(weights: Mapping[str, float]) -> str:
    """Return the part of largest weight."""
    return max(weights, key=lambda name: abs(weights[name]))
