"""What the runs of a study have reached, and whether its methods differ.

Methods are compared by the last held-out score of their runs: mean over run seeds with its 95 %
interval, difference of two methods (`evaluation.statistics`), and probability that a run of
one is better than a run of the other (`evaluation.statistics`, as in rliable). With many pairs of
methods, the intervals of some exclude 0 by chance.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

from germline.evaluation.statistics import (
    FEWEST_SEEDS,
    Interval,
    SeedDifference,
    probability_of_improvement,
)
from germline.record.early_stopping import amounts, signed_score
from germline.report.comparison import SeedGroup
from germline.report.run_facts import RunFacts
from germline.studies.run_processes import evaluation_of
from germline.studies.study_file import Cell, Study
from germline.types import GermlineError, HeldOutScore

AXES = {
    "rollouts": "rollouts",
    "tokens": "generated tokens",
    "forward_tokens": "tokens read or generated",
    "flops": "FLOPs",
    "cpu_minutes": "CPU minutes",
    "minutes": "minutes",
}
"""What scores are drawn over, by the names of `record.early_stopping.amounts`."""

OVERSPENT = 1.05
"""Factor of a budget above which the report says that a method spent more."""

CALIBRATED = 1.1
"""Factor by which a score may be later than asked: calibration takes rollouts, too."""


class CellResult(RunFacts):
    """A run of a study in its present state."""

    @cached_property
    def curve(self) -> list[tuple[dict[str, float], HeldOutScore]]:
        """What the run had spent at each held-out score, and the score."""
        spent = [{}, *(row.get("budget", {}) for row in self.rows)]
        return [(amounts(spent[one.generation]), one) for one in self.scores]

    @cached_property
    def cost(self) -> dict[str, float]:
        """What training has spent, and the peak memory of the process and of the device."""
        spent = self.rows[-1].get("budget", {}) if self.rows else {}
        numbers = {name: float(value) for name, value in spent.items() if name != "held_out"}
        return numbers | {f"peak_mb_{at}": mb for at, mb in self.peak_memory_mb.items()}

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """What `germline eval` said of the last weights; empty if they were not evaluated."""
        evaluation = evaluation_of(self.path)
        return evaluation["result"] if evaluation.get("updates") == self.done else {}

    @property
    def changed(self) -> tuple[int, int]:
        """On how many held-out examples the last score is better than the first, and worse."""
        both = (self.gain.higher, self.gain.lower) if self.gain else (0, 0)
        return both if self.scores[-1].higher_is_better else (both[1], both[0])

    def score_after(self, rollouts: int) -> float | None:
        """Return the first score after so many rollouts, or up to `CALIBRATED` more; else None."""
        low, high = rollouts, CALIBRATED * rollouts
        return next((one.mean for at, one in self.curve if low <= at["rollouts"] <= high), None)

    def reached(self, target: float) -> dict[str, float] | None:
        """Return what was spent at the first score that reaches a target; None without one."""
        sign = 1 if self.scores[-1].higher_is_better else -1
        return next((at for at, one in self.curve if sign * (one.mean - target) >= 0), None)


@dataclass(frozen=True)
class MethodResult(SeedGroup):
    """A method on a task: `counted` are its runs that have ended, at least one."""

    counted: Sequence[CellResult]

    @property
    def signed_ends(self) -> list[float]:
        """The last score of every seed, so that higher is better."""
        return [signed_score(run.scores[-1]) for run in self.counted]

    @property
    def middle(self) -> float:
        """The interquartile mean of the last scores."""
        from scipy.stats import trim_mean  # takes a second

        return float(trim_mean([run.scores[-1].mean for run in self.counted], 0.25))

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the last scores over seeds."""
        return statistics.stdev(self.signed_ends) if len(self.counted) > 1 else None

    @property
    def kl(self) -> float | None:
        """The mean over seeds of the KL divergence from the start, in nats per token."""
        return self.evaluated("kl", "per_token")

    def dominates(self, other: "MethodResult") -> bool:
        """Whether its score is at least as good at no more KL, and one of them is better."""
        mine, theirs = (
            (statistics.fmean(one.signed_ends), -(one.kl or 0.0)) for one in (self, other)
        )
        return is_dominated(theirs, [mine])

    def mean_cost(self, name: str) -> float | None:
        """Return the mean over seeds of a number of `cost`; None where it was not recorded."""
        return _mean(run.cost.get(name) for run in self.counted)

    def evaluated(self, *names: str) -> float | None:
        """Return the mean over seeds of a number that `germline eval` printed."""
        found: list[Any] = [run.evaluation for run in self.counted]
        for name in names:
            found = [one.get(name) if isinstance(one, dict) else None for one in found]
        return _mean(found)

    def over(self, axis: str) -> list[tuple[float, list[float]]]:
        """Return the scores of all seeds after the updates that all have, by their mean cost."""
        by_update = [
            {score.generation: (at[axis], score.mean) for at, score in run.curve}
            for run in self.counted
        ]
        shared = sorted(set(by_update[0]).intersection(*by_update[1:]))
        points = [[one[updates] for one in by_update] for updates in shared]
        return [(statistics.fmean(x for x, _ in some), [y for _, y in some]) for some in points]


@dataclass(frozen=True)
class Pair:
    """Two methods on a task, compared by their last scores.

    Attributes:
        difference: the first less the second; None where a method has one run.
        probability: that a run of the first is better than one of the second; neither has an
            interval (None, NaN) where a method has fewer than five runs.
    """

    first: MethodResult
    second: MethodResult
    difference: SeedDifference | None
    probability: tuple[float, Interval]

    @property
    def is_shown(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.difference is not None and self.difference.decides


@dataclass(frozen=True)
class TaskResult:
    """The methods on a task of which runs have ended, the best mean of last scores first."""

    name: str
    target: float | None
    methods: Sequence[MethodResult]

    def dominating(self, method: MethodResult) -> list[MethodResult]:
        """Return the methods that are better than one in score and KL: none on the Pareto front."""
        known = [one for one in self.methods if one.kl is not None]
        return [one for one in known if one.dominates(method)]

    @cached_property
    def pairs(self) -> list[Pair]:
        """All pairs of methods, the one with the better mean first."""
        return [_pair(*both) for both in combinations(self.methods, 2)]


class StudyResults:
    """The runs of a study that have ended, by task and method."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.notes: list[str] = []
        self.tasks = [
            TaskResult(task, study.file.tasks[task].target, self._methods(task))
            for task in study.tasks
        ]
        for name, best in study.sweeps.items():
            if name in study.methods and (seeds := {*study.seeds} & {*best.get("seeds", ())}):
                self.notes.append(
                    f"the sweep of {name} chose its settings with run seeds "
                    f"{', '.join(map(str, sorted(seeds)))}, whose scores flatter it: compare with "
                    "other seeds"
                )
        fewest = min((len(one.counted) for task in self.tasks for one in task.methods), default=0)
        if 0 < fewest < FEWEST_SEEDS:
            self.notes.append(
                f"means have no interval: it takes {FEWEST_SEEDS} seeds, and there are {fewest}"
            )

    @property
    def methods(self) -> list[tuple[TaskResult, MethodResult]]:
        """Each method on each task, in the order of the study."""
        order = self.study.methods
        return [
            (task, one)
            for task in self.tasks
            for one in sorted(task.methods, key=lambda one: order.index(one.name))
        ]

    def _methods(self, task: str) -> list[MethodResult]:
        found = []
        for method in self.study.methods:
            cells = [one for one in self.study.cells if (one.task, one.method) == (task, method)]
            runs = [run for one in cells if (run := self._read(one))]
            ended = [run for run in runs if run.has_ended and run.scores]
            if len(ended) < len(cells):
                self.notes.append(
                    f"{task}, {method}: {len(cells) - len(ended)} of {len(cells)} runs have not "
                    "ended and do not count"
                )
            if ended:
                found.append(MethodResult(method, runs, ended))
                self._note_budget(task, found[-1])
        return sorted(found, key=lambda one: -statistics.fmean(one.signed_ends))

    def _read(self, cell: Cell) -> CellResult | None:
        """Return a run that was begun; note why one cannot be read."""
        try:
            return CellResult(cell.path) if (cell.path / "run.json").exists() else None
        except GermlineError as error:
            self.notes.append(f"{cell.title}: {error}")
            return None

    def _note_budget(self, task: str, method: MethodResult) -> None:
        """Note where runs spend less or clearly more than the budget, so that it is not equal."""
        generations = method.counted[0].config.generations
        for name, limit in self.study.file.budget.limits.items():
            spent = statistics.fmean(run.curve[-1][0][name] for run in method.counted)
            about = f"{task}, {method.name}: {spent:,.4g} of budget.{name}={limit:,.12g} are spent"
            if spent > OVERSPENT * limit:
                self.notes.append(f"{about}, as a run ends after a whole generation")
            elif spent < limit and not any(run.run.stopped_by for run in method.counted):
                self.notes.append(f"{about}: generations={generations} is too few")


def is_dominated(values: Sequence[float], others: Iterable[Sequence[float]]) -> bool:
    """Whether one of the others is at least as high in every value, and higher in one."""
    return any(
        one != values and all(a >= b for a, b in zip(one, values, strict=True)) for one in others
    )


def _pair(first: MethodResult, second: MethodResult) -> Pair:
    fewest = min(len(first.counted), len(second.counted))
    share, interval = probability_of_improvement(first.signed_ends, second.signed_ends)
    difference = first.minus(second) if fewest > 1 else None
    if fewest < FEWEST_SEEDS:
        difference = difference and replace(difference, interval=None)
        interval = math.nan, math.nan
    return Pair(first, second, difference, (share, interval))


def _mean(values: Any) -> float | None:
    known = [value for value in values if isinstance(value, int | float)]
    return statistics.fmean(known) if known else None
