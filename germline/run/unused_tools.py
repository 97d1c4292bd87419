"""Say that no reply calls a tool: then no difference between members comes from tools."""

import logging
from collections.abc import Sequence

from germline.environments.tool_calls import find_calls
from germline.protocols import Task
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Rollout

log = logging.getLogger(__name__)


def warn_of_unused_tools(task: Task, rollouts: Sequence[Rollout], updates: int) -> None:
    """Log that no reply of some episodes called a tool, where the environment has tools.

    Args:
        task: of any kind.
        rollouts: the episodes, of which at least one is given.
        updates: after which the weights wrote them.
    """
    if not isinstance(task, EnvironmentTask) or not task.has_tools:
        return
    turns = (turn for rollout in rollouts for turn in rollout.turns)
    if any(find_calls(turn.content) for turn in turns if turn.role == "assistant"):
        return
    log.warning(
        "after %d updates, no reply in %d held-out episodes called a tool, although the system "
        "message describes the tools and how they are called: take a model that was trained to "
        "call tools, show a whole call in task.system_prompt, or reward a reply that contains one",
        *(updates, len(rollouts)),
    )
