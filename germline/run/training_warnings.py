"""Warnings of a training: its findings, each once, and held-out scores that mislead."""

import logging
from collections import Counter
from collections.abc import Sequence

from germline.environments.tool_calls import find_calls
from germline.protocols import Task
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.report.finding_rules import MANY_FAILED
from germline.report.findings import LiveFindings
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Rollout

log = logging.getLogger(__name__)


class FindingLog:
    """Logs each finding of a training once, by generation 3 where members tie."""

    def __init__(self, run: RunDirectory) -> None:
        self._found = LiveFindings(run)
        self._logged: set[str] = set()

    def tell(self, row: Row) -> None:
        """Log new findings after a generation."""
        for finding in self._found.tell(row):
            if finding.code not in self._logged:
                log.warning("after %d generations: %s", row["generation"] + 1, finding.sentence)
                self._logged.add(finding.code)


def warn_of_held_out(task: Task, rollouts: Sequence[Rollout], updates: int) -> None:
    """Log what makes a held-out score misleading.

    Args:
        task: of any kind.
        rollouts: the held-out completions.
        updates: after which the weights wrote them.
    """
    _warn_of_failures(rollouts, updates)
    _warn_of_unused_tools(task, rollouts, updates)


def _warn_of_failures(rollouts: Sequence[Rollout], updates: int) -> None:
    """Log that the grading of many completions failed: a low score says little of the model."""
    reasons = Counter(rollout.grade.failure for rollout in rollouts if rollout.grade.failure)
    failed = sum(reasons.values())
    if failed <= MANY_FAILED * len(rollouts):
        return
    log.warning(
        "after %d updates, the grading of %d of %d held-out completions failed, most often by: %s; "
        "the held-out score says little of the model before this is mended",
        *(updates, failed, len(rollouts), reasons.most_common(1)[0][0]),
    )


def _warn_of_unused_tools(task: Task, rollouts: Sequence[Rollout], updates: int) -> None:
    """Log that no reply of the episodes called a tool: then members do not differ by tools."""
    if not isinstance(task, EnvironmentTask) or not task.has_tools or not rollouts:
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
