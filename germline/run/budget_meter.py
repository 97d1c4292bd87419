"""Measures what a run spends: rollouts, tokens, floating point operations (FLOPs) and time.

With N weights that a token is multiplied by, of which d are searched, F tokens read or generated,
and B tokens of texts whose gradient was computed,

    (1)  forward FLOPs   2 N (F + B)
    (2)  backward FLOPs  2 (N + d) B

so a token costs 2 N forwards and, where all weights are trained, 4 N backwards (Kaplan et al. 2020,
arXiv 2001.08361). Not counted are attention over the context, the noise of members, and passes of
other models (`task.kl_coef`, reward models). Of a mixture of experts, all experts count.

Training and held-out scores are counted apart.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import psutil

from germline.fleet import Fleet
from germline.fleet.worker_jobs import dimension, used_weights
from germline.record.early_stopping import Spent

COUNTED = ("rollouts", "tokens", "forward_tokens")
"""What a fleet counts."""

OF_METHOD = ("forward_tokens", "backward_tokens")
"""Metrics of a method that are counted: see `methods.method.Learned`."""


class BudgetMeter:
    """Counts from one lap to the next.

    Args:
        fleet: what the run generates and scores with.
        earlier: what the run spent before it was stopped.
    """

    def __init__(self, fleet: Fleet, earlier: Spent) -> None:
        self._fleet = fleet
        self._weights = fleet.query(used_weights)
        self._searched = fleet.query(dimension)
        self._training = {name: value for name, value in earlier.items() if name != "held_out"}
        self._held_out = dict(earlier.get("held_out", {}))
        self.restart()

    def restart(self) -> None:
        """Leave out what was spent since the last lap, such as on snapshots and figures."""
        self._fleet.counts.clear()
        self._cpu_s, self._wall_s = _cpu_s(), time.perf_counter()

    def training(self, metrics: Mapping[str, Any]) -> None:
        """Count a generation: what was spent since the last lap, and what its method reports."""
        self._lap(self._training, {name: int(metrics.get(name) or 0) for name in OF_METHOD})

    def held_out(self) -> None:
        """Count a held-out score."""
        self._lap(self._held_out, {})

    def spent(self) -> dict[str, Any]:
        """Return what was spent so far, as the field `budget` of a generation's row."""
        return {**self._training, "held_out": dict(self._held_out)}

    def _lap(self, total: dict[str, Any], reported: Mapping[str, int]) -> None:
        cpu_s, wall_s = _cpu_s(), time.perf_counter()
        counts = {name: self._fleet.counts[name] for name in COUNTED}
        self._fleet.counts.clear()
        backward = reported.get("backward_tokens", 0)
        counts["forward_tokens"] += reported.get("forward_tokens", 0) + backward
        added: dict[str, float] = {
            **counts,
            "forward_flops": 2.0 * self._weights * counts["forward_tokens"],
            "cpu_s": max(0.0, cpu_s - self._cpu_s),
            "wall_s": wall_s - self._wall_s,
        }
        if reported:
            added["backward_tokens"] = backward
            added["backward_flops"] = 2.0 * (self._weights + self._searched) * backward
        for name, value in added.items():
            total[name] = total.get(name, 0) + value
        self._cpu_s, self._wall_s = cpu_s, wall_s


def _cpu_s() -> float:
    """Return the processor time of this process and of all below it, such as graders and engines.

    Processes on other machines are not counted.
    """
    total = sum(os.times()[:4])  # with the children that ended
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:  # it ended in between
            continue
    return total
