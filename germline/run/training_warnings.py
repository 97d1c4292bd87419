"""Warnings of a training: a weak signal, grading that failed, replies without a tool call."""

import logging
from collections import Counter
from collections.abc import Sequence

from germline.environments.tool_calls import find_calls
from germline.protocols import Task
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.report.advice import (
    MANY_FAILED,
    WINDOW,
    advice,
    failed_share,
    percent,
    with_update,
    without_update,
)
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Rollout

log = logging.getLogger(__name__)


class SignalWarnings:
    """Logs advice on the signal once, and again when it returns after `WINDOW` generations."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Take the generations of an earlier part of the run."""
        self._rows = list(rows)
        self._latest: dict[str, int] = {}

    def tell(self, row: Row) -> None:
        """Log new advice after a generation."""
        self._rows.append(row)
        done = len(self._rows)
        for about, sentence in advice(self._rows).items():
            if about not in self._latest or done - self._latest[about] > WINDOW:
                log.warning("after %d generations: %s", done, sentence)
            self._latest[about] = done


def warn_of_held_out(task: Task, rollouts: Sequence[Rollout], updates: int) -> None:
    """Log what makes a held-out score misleading.

    Args:
        task: of any kind.
        rollouts: the held-out completions.
        updates: after which the weights wrote them.
    """
    _warn_of_failures(rollouts, updates)
    _warn_of_unused_tools(task, rollouts, updates)


def warn_after_training(directory: RunDirectory) -> None:
    """Log that many gradings failed, or no update was made; Python has no other summary."""
    rows = directory.generations()
    share, reason = failed_share(rows)
    if share > MANY_FAILED:
        log.warning(
            "the grading of %s of the completions failed, most often by: %s; %s lists every reason",
            *(percent(share), reason, directory.report),
        )
    if not with_update(rows) and (sentence := without_update(rows, directory.config)):
        log.warning("%s %s says more.", sentence, directory.report)


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
