"""What the trials of a sweep have reached, read from its files alone, also while it runs.

OUT/sweep.json              config, overrides, space, sampler, objectives, budget, rungs, seeds
OUT/trials/0007/trial.json  settings and state of a trial
OUT/trials/0007/seed-0/     a run of the trial, one for each run seed, also of tests
OUT/shared/                 rollouts that trials have in common, until the sweep ends
OUT/best.json               settings of the best trial, and what the search has spent

The best of many noisy scores is too good on average. Trials are ranked by their scores shrunk
towards the mean m of all complete trials (empirical Bayes; Efron and Morris 1975, JASA 70):

    (1)  m + between / (between + within / n) (x - m)

of the mean x over the n run seeds of a trial, with the variance `within` over seeds of a trial,
pooled, and `between` trials. While every trial has one seed, `within` is the squared standard
error over examples, which is too large, because trials share their examples.
"""

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from germline.errors import count_of
from germline.record.atomic_files import read_json
from germline.record.early_stopping import amounts, signed_score
from germline.record.run_paths import is_locked, seed_runs
from germline.report.text_format import number, signed
from germline.studies.study_results import CellResult, is_dominated
from germline.studies.sweep_space import SweepSpace, rounded
from germline.types import GermlineError, HeldOutScore

SWEEP_FILE, TRIAL_FILE = "sweep.json", "trial.json"
TRIALS, SHARED = "trials", "shared"

TrialState = Literal["running", "complete", "pruned", "collapsed", "failed"]
"""`complete`: trained up to the last rung; `pruned`: a rule stopped it; `collapsed`: its answers or
weights broke; `failed`: it crashed."""

NO_BEST = (
    "no trial ends better than it began, so none is recommended: search other values (a larger "
    "sigma where members earn the same), train longer, or take an easier task"
)


def score_at(run: CellResult, rung: int) -> HeldOutScore | None:
    """Return the score of a run at a rung: its last one by then; None if it did not get there.

    A run that ended for another reason than its budget of rollouts is at all rungs.
    """
    done = [amounts(row.get("budget", {}))["rollouts"] for row in run.rows]
    stopped_by = "" if run.damage else run.run.stopped_by or ""
    is_early = run.has_ended and not stopped_by.startswith("budget.rollouts=")
    if not done or (done[-1] < rung and not is_early):
        return None
    updates = bisect_left(done, rung) + 1
    return next((one for one in reversed(run.scores) if 0 < one.generation <= updates), None)


@dataclass(frozen=True)
class SweepTrial:
    """A trial: values of the searched settings, and a run for each run seed.

    Attributes:
        number: from 0, in the order in which trials began.
        settings: setting -> value, those of a condition that does not hold left out.
        runs: runs that were begun in the search, by rising run seed.
        state: of the trial; runs of a `running` trial may be shorter than those of others.
        reason: why it was stopped or failed; empty otherwise.
        sampler: what proposed it, such as `tpe` or `random`.
        path: its folder.
        tests: runs with test seeds.
        asked: its number among the trials of the sampler.
        seeds: number of run seeds that it is to have in the search so far.
        other_minutes: of its processes in the search, beside generations: start, held-out scores.
    """

    number: int
    settings: Mapping[str, Any]
    runs: Sequence[CellResult]
    state: TrialState
    reason: str
    sampler: str
    path: Path
    tests: Sequence[CellResult] = ()
    asked: int = 0
    seeds: int = 1
    other_minutes: float = 0.0

    @classmethod
    def read(cls, folder: Path, seeds: Collection[int]) -> "SweepTrial":
        """Read a trial from its folder, given the run seeds of the search."""
        runs = [CellResult(one) for one in seed_runs(folder)]
        tests = [one for one in runs if one.config.seed not in seeds]
        runs = [one for one in runs if one not in tests]
        return cls(**read_json(folder / TRIAL_FILE), path=folder, runs=runs, tests=tests)

    @property
    def is_open(self) -> bool:
        """Whether a run of the search is to be begun or trained on."""
        is_short = self.state == "complete" and len(self.signed_scores) < self.seeds
        return self.state == "running" or is_short

    @property
    def present(self) -> str:
        """Its state; `stopped` where it is to go on, and no process trains it."""
        is_stopped = self.state == "running" and not is_locked(self.path)
        return "stopped" if is_stopped else self.state

    @cached_property
    def counted(self) -> list[CellResult]:
        """The runs of the search that have a score and are not training on."""
        return [one for one in self.runs if one.scores and one.has_ended]

    @cached_property
    def signed_scores(self) -> dict[int, float]:
        """The last held-out score of each counted run by run seed, so that higher is better."""
        return {one.config.seed: signed_score(one.scores[-1]) for one in self.counted}

    @property
    def mean(self) -> float:
        """The mean of `signed_scores`; NaN without one."""
        return _mean(self.signed_scores.values())

    @property
    def is_better(self) -> bool:
        """Whether its runs end better than they began, on average."""
        return self.mean > _mean([signed_score(one.scores[0]) for one in self.counted])

    @cached_property
    def tested(self) -> "SweepTrial":
        """The trial with the runs of its tests in place of those of the search."""
        return replace(self, runs=self.tests)

    @property
    def unseen(self) -> float:
        """The mean over its tests of the signed score on unseen rows; NaN where none is known."""
        return _mean([self.sign * one.evaluation["mean"] for one in self.tests if one.evaluation])

    @property
    def sign(self) -> float:
        """1 where a higher score is better, and -1 where signed scores are negated costs."""
        is_cost = self.counted and not self.counted[0].scores[-1].higher_is_better
        return -1.0 if is_cost else 1.0

    def by_example(self, seeds: Collection[int]) -> Float64[np.ndarray, " examples"]:
        """Return the signed value of each held-out example, the mean over some run seeds."""
        last = [one.scores[-1].values for one in self.runs if one.config.seed in seeds]
        return np.asarray(self.sign * np.array(last, dtype=np.float64).mean(axis=0))

    def at(self, rung: int) -> list[tuple[CellResult, HeldOutScore]]:
        """Return its runs that got to a rung, with their scores there."""
        return [(run, one) for run in self.runs if (one := score_at(run, rung))]

    def score_at(self, rung: int) -> float:
        """Return the mean signed score of its runs at a rung; NaN if no run got there."""
        return _mean([signed_score(one) for _, one in self.at(rung)])

    @cached_property
    def spent(self) -> dict[str, float]:
        """What training of its runs has spent, by the names of the settings of `budget`.

        Rollouts of other trials that it shares count; of a killed process, minutes of generations.
        """
        total = _sum([amounts(one.run.spent) for one in self.runs])
        return total | {"minutes": total["minutes"] + self.other_minutes}

    @property
    def peak_memory_mb(self) -> float:
        """The largest peak memory of a run, of host or device, in MB; 0 where none is recorded."""
        return max((mb for one in self.runs for mb in one.peak_memory_mb.values()), default=0.0)


class SweepResults:
    """The trials of a sweep in their present state.

    Attributes:
        facts: `sweep.json`.
        rungs: rollouts of a run after which trials are compared; the last one ends a trial.
        trials: in the order in which they began.

    Raises:
        GermlineError: the folder holds no sweep, or a file of it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / SWEEP_FILE).exists():
            raise GermlineError(f"{folder} holds no sweep: there is no {SWEEP_FILE}")
        self.facts = read_json(folder / SWEEP_FILE)
        self.rungs: list[int] = self.facts["rungs"]
        found = (one.parent for one in (folder / TRIALS).glob(f"*/{TRIAL_FILE}"))
        trials = (SweepTrial.read(one, self.facts["seeds"]) for one in found)
        self.trials = sorted(trials, key=lambda one: one.number)

    @cached_property
    def by_sampler(self) -> dict[str, list[SweepTrial]]:
        """The trials of each sampler."""
        names = self.facts["samplers"]
        return {name: [one for one in self.trials if one.sampler == name] for name in names}

    @property
    def space(self) -> SweepSpace:
        """What is searched, in the unit of each setting."""
        space = SweepSpace(self.facts["space"])
        return space.in_units(self.facts["probe"]["units"]) if space.needs_probe else space

    @cached_property
    def complete(self) -> list[SweepTrial]:
        """Trials that were trained up to the last rung and have a score."""
        return [one for one in self.trials if one.state == "complete" and one.signed_scores]

    @cached_property
    def seed_variance(self) -> float | None:
        """The variance of scores over run seeds, pooled; None while no trial has several seeds."""
        scores = [[*one.signed_scores.values()] for one in self.complete]
        free = sum(len(some) - 1 for some in scores)
        squares = sum((len(some) - 1) * statistics.variance(some) for some in scores if some[1:])
        return squares / free if free else None

    @cached_property
    def variances(self) -> tuple[float, float, float]:
        """The mean m, `within` and `between` of (1)."""
        means = [one.mean for one in self.complete]
        errors = [one.counted[0].scores[-1].standard_error ** 2 for one in self.complete]
        seeds = statistics.harmonic_mean(len(one.signed_scores) for one in self.complete)
        within = statistics.fmean(errors) if self.seed_variance is None else self.seed_variance
        spread = statistics.variance(means) if len(means) > 1 else 0.0
        return statistics.fmean(means), within, max(0.0, spread - within / seeds)

    def shrunk(self, trial: SweepTrial) -> float:
        """Return equation (1) for a trial that has a score."""
        mean, within, between = self.variances
        noise = within / len(trial.signed_scores)
        return mean + (between / (between + noise) * (trial.mean - mean) if between else 0.0)

    def shown(self, score: float) -> str:
        """Format a score that is signed so that higher is better."""
        return number(min((one.sign for one in self.trials), default=1.0) * score)

    @cached_property
    def ranked(self) -> list[SweepTrial]:
        """Complete trials by their shrunk score, best first; of equal ones, more seeds first."""
        return sorted(
            self.complete,
            key=lambda one: (-self.shrunk(one), -len(one.signed_scores), -one.mean, one.number),
        )

    @property
    def best(self) -> SweepTrial | None:
        """The trial to recommend: the first of `ranked` that ends better than it began."""
        return next((one for one in self.ranked if one.is_better), None)

    @property
    def spent(self) -> dict[str, float]:
        """What training of all trials has spent, tests left out."""
        return _sum([one.spent for one in self.trials])

    def objectives(self, trial: SweepTrial, score: float) -> list[float]:
        """Return the objectives of a trial with some score, higher is better.

        Tokens are per rollout, so that runs of different lengths compare.
        """
        tokens = trial.spent["tokens"] / max(1.0, trial.spent["rollouts"])
        known = {"score": score, "peak_memory": -trial.peak_memory_mb, "tokens": -tokens}
        return [known[name] for name in self.facts["objectives"]]

    def told(self, trial: SweepTrial) -> list[float] | None:
        """Return what its sampler is told of a trial; None before its end.

        Of one that failed or collapsed, it is the worst value of each objective of any trial,
        scores before training too.
        """
        if trial.state == "running":
            return None
        if trial.state not in ("collapsed", "failed"):
            return self.objectives(trial, trial.mean)
        scored = [run.scores for one in self.trials for run in one.runs if run.scores]
        least = min((signed_score(some[at]) for some in scored for at in (0, -1)), default=0.0)
        columns = zip(*(self.objectives(one, least) for one in self.trials), strict=True)
        return [min(column) for column in columns]

    @cached_property
    def front(self) -> list[SweepTrial]:
        """The complete trials that no other one is at least as good as in every objective."""
        if len(self.facts["objectives"]) == 1:
            return self.complete
        values = {one.number: self.objectives(one, self.shrunk(one)) for one in self.ranked}
        return [one for one in self.ranked if not is_dominated(values[one.number], values.values())]

    def summary(self) -> list[str]:
        """Say what was spent, how optimistic the search is, and what each sampler has found."""
        counts = Counter(one.present for one in self.trials)
        ended = ", ".join(f"{count} {name}" for name, count in counts.items())
        trials, rollouts = count_of(len(self.trials), "trials"), self.spent["rollouts"]
        lines = [f"{trials}, {rollouts:,.0f} rollouts: {ended}"]
        if shared := sum(run.total("shared_rollouts") for one in self.trials for run in one.runs):
            lines[0] += f"; {shared:,} of them were shared by trials with the same beginning"
        if tests := [amounts(run.run.spent) for one in self.trials for run in one.tests]:
            lines[0] += f"; tests took {_sum(tests)['rollouts']:,.0f} more"
        if probed := self.facts.get("probe"):
            units = [f"{name}={rounded(unit):g}" for name, unit in probed["units"].items()]
            lines.append(f"germline probe found {', '.join([*units, *probed['settings']])}")
        tied = [str(one.number) for one in self.ranked if one.mean == self.ranked[0].mean]
        if len(tied) > 1:
            lines.append(f"trials {', '.join(tied)} have the same, best mean score")
        has_ended = self.trials and all(one.state != "running" for one in self.trials)
        if self.best is None and has_ended:
            lines.append(NO_BEST if self.complete else self._none_complete())
        elif self.best and self.best.tested.counted:
            lines.append(self.optimism(self.best))
        if len(self.facts["objectives"]) > 1:
            front = ", ".join(str(one.number) for one in self.front)
            lines.append(f"Pareto front of {', '.join(self.facts['objectives'])}: trials {front}")
        for sampler, some in self.by_sampler.items():
            cost = sum(one.spent["rollouts"] for one in some)
            if best := next((one for one in self.ranked if one in some), None):
                score = self.shown(self.shrunk(best))
                lines.append(f"{sampler}: {score} at best (shrunk) with {cost:,.0f} rollouts")
        return lines

    def _none_complete(self) -> str:
        """Say why no trial has ended with a score, and what to change."""
        reasons = "; ".join([*dict.fromkeys(one.reason for one in self.trials)][:3])
        rows = [row for one in self.trials for run in one.runs for row in run.rows]
        is_silent = rows and all(row["zero_signal"] for row in rows)
        return (
            f"no trial is complete ({reasons}): search other values, or "
            f"{'take an easier task' if is_silent else 'give a larger budget'}"
        )

    def optimism(self, best: SweepTrial) -> str:
        """Compare the score of the best trial with those of its tests, and with other tests."""
        score, again, unseen = map(self.shown, (best.mean, best.tested.mean, best.unseen))
        gap = best.mean - best.tested.mean
        line = (
            f"trial {best.number} scored {score} in the search, {again} with new run seeds "
            f"(the search is {signed(gap) if gap > 0 else 'not'} optimistic)"
        )
        known = [one.unseen for one in self.ranked if not math.isnan(one.unseen)]
        regret = f"{number(max(known, default=math.nan) - best.unseen)} better (regret)"
        more = f" and {unseen} on unseen rows; the best of {len(known)} tests is {regret}"
        return line if math.isnan(best.unseen) else line + more

    def as_json(self) -> dict[str, Any]:
        """Return all trials as values for JSON."""
        names = ("number", "sampler", "settings", "reason", "spent", "peak_memory_mb", "unseen")
        trials = [
            {name: getattr(one, name) for name in names}
            | {"state": one.present, "scores": one.signed_scores}
            | {"test_scores": one.tested.signed_scores}
            | {"shrunk": self.shrunk(one) if one in self.complete else None}
            for one in self.trials
        ]
        best = self.best.number if self.best else None
        return {"out": self.folder, "best": best, "trials": trials, "summary": self.summary()}


def _mean(values: Collection[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _sum(spent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in spent) for name in amounts({})}
