"""Warnings of a training: failed grading, unused tools, no update, cores that others use."""

import logging
import os
from collections import Counter
from collections.abc import Sequence

import torch

from germline.config import Config, InProcess, Local
from germline.environments.tool_calls import find_calls
from germline.protocols import Task
from germline.record import RunDirectory
from germline.report.advice import MANY_FAILED, with_update, without_update
from germline.run.machine_load import MachineLoad
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Rollout

log = logging.getLogger(__name__)

LEAST_S = 10.0
"""Seconds of a measurement of the load: the start of a run is not a sample of it."""

ENOUGH_CORES = 0.75
"""Free cores for each thread, below which threads wait for each other most of the time."""


class SharedCores:
    """Tells once that other processes use the cores on which an engine of this process computes."""

    def __init__(self, config: Config) -> None:
        """Begin to measure; nothing is told of an engine elsewhere, on a GPU, or of one thread."""
        local = isinstance(config.fleet, Local) and config.fleet.engines == 1
        here = local and isinstance(config.engine, InProcess)
        self._load = MachineLoad() if here and not torch.cuda.is_available() else None

    def tell(self) -> None:
        """Log the load, if it slows the threads and was not logged before."""
        if self._load is None or self._load.seconds < LEAST_S:
            return
        others, threads = self._load.share_of_others(), torch.get_num_threads()
        if threads == 1 or others is None:
            return
        if (1 - others) * (os.cpu_count() or 1) >= ENOUGH_CORES * threads:
            self._load = MachineLoad()
            return
        self._load = None
        log.warning(
            "other processes (graders among them) use %.0f %% of the cores, so the %d threads of "
            "this run wait for each other and a generation takes longer. A run that is begun with "
            "engine.threads=1 is faster there (docs/benchmarks.md, Shared cores); a run that is "
            "resumed keeps its number of threads",
            *(100 * others, threads),
        )


def warn_of_held_out(task: Task, rollouts: Sequence[Rollout], updates: int) -> None:
    """Log what makes a held-out score misleading.

    Args:
        task: of any kind.
        rollouts: the held-out completions.
        updates: after which the weights wrote them.
    """
    _warn_of_failures(rollouts, updates)
    _warn_of_unused_tools(task, rollouts, updates)


def warn_without_update(directory: RunDirectory) -> None:
    """Log that no generation made an update; who trains from Python sees no other summary."""
    rows = directory.generations()
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
