"""What the trials of a sweep have reached, read from its files alone, also while it runs.

The best of many noisy scores is too good on average. Trials are ranked by their scores shrunk
towards the mean m of all complete trials (empirical Bayes; Efron and Morris 1975, JASA 70):

    (1)  m + between / (between + within / n) (x - m)

of the mean x over the n run seeds of a trial, with the variance `within` over seeds of a trial,
pooled, and `between` trials. While every trial has one seed, `within` is the squared standard
error over examples, which is too large, because trials share their examples.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from germline.errors import count_of
from germline.record.early_stopping import amounts, signed_score
from germline.record.seed_study import seed_runs
from germline.report.text_format import number, signed
from germline.studies.study_results import CellResult, is_dominated
from germline.studies.sweep_files import SWEEP_FILE, TESTS, TRIAL_FILE, TRIALS, read_json
from germline.studies.sweep_space import SweepSpace, rounded

TrialState = Literal["running", "complete", "pruned", "failed"]
"""`complete`: trained up to the last rung; `pruned`: a rule stopped it; `failed`: it crashed."""

COLLAPSED = "collapsed"
"""The beginning of the reason of a pruned trial whose answers or weights broke."""


@dataclass(frozen=True)
class SweepTrial:
    """A trial: values of the searched settings, and a run for each run seed.

    Attributes:
        number: from 0, in the order in which trials began.
        settings: setting -> value, those of a condition that does not hold left out.
        runs: runs that were begun, by rising run seed.
        state: of the trial; runs of a `running` trial may be shorter than those of others.
        reason: why it was pruned or failed; empty otherwise.
        sampler: what proposed it, such as `tpe` or `random`.
        rung: number of rungs that all of its runs have reached.
        path: its folder.
    """

    number: int
    settings: Mapping[str, Any]
    runs: Sequence[CellResult]
    state: TrialState
    reason: str
    sampler: str
    rung: int
    path: Path

    @property
    def has_collapsed(self) -> bool:
        """Whether it was pruned because its answers or weights broke."""
        return self.reason.startswith(COLLAPSED)

    @cached_property
    def counted(self) -> list[CellResult]:
        """The runs that have a score and are not training on."""
        return [one for one in self.runs if one.scores and one.has_ended]

    @cached_property
    def signed_scores(self) -> dict[int, float]:
        """The last held-out score of each counted run by run seed, so that higher is better."""
        return {one.config.seed: signed_score(one.scores[-1]) for one in self.counted}

    @property
    def mean(self) -> float:
        """The mean of `signed_scores`; NaN without one."""
        return statistics.fmean(self.signed_scores.values()) if self.signed_scores else float("nan")

    @property
    def sign(self) -> float:
        """1 where a higher score is better, and -1 where signed scores are negated costs."""
        is_cost = self.counted and not self.counted[0].scores[-1].higher_is_better
        return -1.0 if is_cost else 1.0

    @cached_property
    def spent(self) -> dict[str, float]:
        """What training of all its runs has spent, by the names of the settings of `budget`.

        Rollouts that its runs took over from other trials are left out.
        """
        spent = sum_amounts([amounts(one.run.spent) for one in self.runs])
        return spent | {"rollouts": spent["rollouts"] - self.shared}

    @cached_property
    def shared(self) -> int:
        """The number of rollouts that its runs took over from other trials."""
        return sum(one.total("shared_rollouts") for one in self.runs)

    @property
    def tokens(self) -> float:
        """Generated tokens per rollout, so that runs of different lengths compare."""
        return self.spent["tokens"] / max(1.0, self.spent["rollouts"] + self.shared)

    @property
    def unseen(self) -> float:
        """The mean over its runs of the signed score on unseen rows; NaN where none is known."""
        known = [self.sign * one.evaluation["mean"] for one in self.counted if one.evaluation]
        return statistics.fmean(known) if known else float("nan")

    @property
    def peak_memory_mb(self) -> float:
        """The largest peak memory of a run, of host or device, in MB; 0 where none is recorded."""
        return max((mb for one in self.runs for mb in one.peak_memory_mb.values()), default=0.0)


@dataclass(frozen=True)
class Noise:
    """Variances of signed scores: over run seeds of a trial, and between complete trials.

    Attributes:
        mean: of the complete trials.
    """

    mean: float
    within: float
    between: float

    def shrunk(self, trial: SweepTrial) -> float:
        """Return equation (1) for a trial that has a score."""
        seeds = len(trial.signed_scores)
        weight = self.between / (self.between + self.within / seeds) if self.between else 0.0
        return self.mean + weight * (trial.mean - self.mean)


class SweepResults:
    """The trials of a sweep in their present state.

    Attributes:
        facts: `sweep.json`.
        trials: in the order in which they began.
        tests: the trials that were trained again with test seeds, best first.

    Raises:
        GermlineError: the folder holds no sweep, or a file of it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = read_json(folder / SWEEP_FILE)
        self.trials = [read_trial(one.parent) for one in _trial_files(folder / TRIALS)]
        self.tests = [read_trial(one.parent) for one in _trial_files(folder / TESTS)]

    @property
    def space(self) -> SweepSpace:
        """What is searched, in the unit of each setting."""
        space = SweepSpace(self.facts["space"])
        return space.in_units(self.facts["probe"]["units"]) if space.needs_probe else space

    @property
    def rungs(self) -> list[int]:
        """Rollouts of a run after which trials are compared; the last one ends a trial."""
        return list(self.facts["rungs"])

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
    def noise(self) -> Noise:
        """The variances of (1); without a complete trial all are 0."""
        means = [one.mean for one in self.complete]
        counts = [len(one.signed_scores) for one in self.complete]
        errors = [one.counted[0].scores[-1].standard_error ** 2 for one in self.complete]
        within = self.seed_variance
        if within is None:
            within = statistics.fmean(errors) if errors else 0.0
        seeds = statistics.harmonic_mean(counts) if counts else 1
        spread = statistics.variance(means) if len(means) > 1 else 0.0
        mean = statistics.fmean(means) if means else 0.0
        return Noise(mean, within, max(0.0, spread - within / seeds))

    @property
    def sign(self) -> float:
        """That of the trials, which have the same metric."""
        return min((one.sign for one in self.trials), default=1.0)

    @cached_property
    def ranked(self) -> list[SweepTrial]:
        """Complete trials by their shrunk score, best first; of equal ones, more seeds first."""
        noise = self.noise
        return sorted(
            self.complete,
            key=lambda one: (-noise.shrunk(one), -len(one.signed_scores), -one.mean, one.number),
        )

    @property
    def tied(self) -> list[int]:
        """The numbers of the complete trials whose mean score equals that of the best trial."""
        return [one.number for one in self.ranked if one.mean == self.ranked[0].mean]

    @property
    def spent(self) -> dict[str, float]:
        """What training of all trials has spent, tests left out."""
        return sum_amounts([one.spent for one in self.trials])

    def objectives(self, trial: SweepTrial) -> list[float]:
        """Return the objectives of a complete trial, higher is better."""
        known = {
            "score": self.noise.shrunk(trial),
            "peak_memory": -trial.peak_memory_mb,
            "tokens": -trial.tokens,
        }
        return [known[name] for name in self.facts["objectives"]]

    @cached_property
    def front(self) -> list[SweepTrial]:
        """The complete trials that no other one is at least as good as in every objective."""
        if len(self.facts["objectives"]) == 1:
            return self.complete
        values = [self.objectives(one) for one in self.ranked]
        pairs = zip(self.ranked, values, strict=True)
        return [one for one, mine in pairs if not is_dominated(mine, values)]

    def summary(self) -> list[str]:
        """Say what was spent, how optimistic the search is, and what each sampler has found."""
        counts = Counter(COLLAPSED if one.has_collapsed else one.state for one in self.trials)
        ended = ", ".join(f"{count} {name}" for name, count in counts.items())
        trials, rollouts = count_of(len(self.trials), "trials"), self.spent["rollouts"]
        lines = [f"{trials}, {rollouts:,.0f} rollouts: {ended}"]
        if shared := sum(one.shared for one in self.trials):
            lines[0] += f"; {shared:,} more rollouts were shared by trials with the same beginning"
        if probed := self.facts.get("probe"):
            units = [f"{name}={rounded(unit):g}" for name, unit in probed["units"].items()]
            lines.append(f"germline probe found {', '.join([*units, *probed['settings']])}")
        if len(self.tied) > 1:
            lines.append(f"trials {', '.join(map(str, self.tied))} have the same, best mean score")
        tests = [one for one in self.tests if one.signed_scores]
        if tests and tests[0].number == self.ranked[0].number:
            of_search, again = self.ranked[0].mean, tests[0].mean
            shown = [number(self.sign * one) for one in (of_search, again, tests[0].unseen)]
            line = (
                f"trial {tests[0].number} scored {shown[0]} in the search, {shown[1]} with new run "
                f"seeds (the search is {signed(of_search - again)} optimistic)"
            )
            known = [one.unseen for one in tests if math.isfinite(one.unseen)]
            if math.isfinite(tests[0].unseen):
                regret = max(known) - tests[0].unseen
                line += f" and {shown[2]} on unseen rows; the best of {len(known)} tests is "
                line += f"{number(regret)} better (regret)"
            lines.append(line)
        if len(self.facts["objectives"]) > 1:
            front = ", ".join(str(one.number) for one in self.front)
            lines.append(f"Pareto front of {', '.join(self.facts['objectives'])}: trials {front}")
        for sampler in self.facts["samplers"]:
            some = [one for one in self.trials if one.sampler == sampler]
            cost = sum(one.spent["rollouts"] for one in some)
            best = next((one for one in self.ranked if one in some), None)
            score = self.sign * self.noise.shrunk(best) if best else math.nan
            lines.append(f"{sampler}: {number(score)} at best (shrunk) with {cost:,.0f} rollouts")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return all trials and tests as values for JSON."""

        def values(trial: SweepTrial) -> dict[str, Any]:
            names = ("number", "sampler", "settings", "state", "reason", "spent", "peak_memory_mb")
            return {name: getattr(trial, name) for name in names} | {"scores": trial.signed_scores}

        shrunk = {one.number: self.noise.shrunk(one) for one in self.complete}
        return {
            "out": self.folder,
            "best": self.ranked[0].number if self.ranked else None,
            "trials": [values(one) | {"shrunk": shrunk.get(one.number)} for one in self.trials],
            "tests": [values(one) | {"unseen": one.unseen} for one in self.tests],
            "summary": self.summary(),
        }


def read_trial(folder: Path) -> SweepTrial:
    """Return a trial, or a test of one, from its folder."""
    facts = read_json(folder / TRIAL_FILE)
    known = {name: facts[name] for name in ("number", "settings", "state", "reason")}
    runs = [CellResult(one) for one in seed_runs(folder)]
    return SweepTrial(**known, runs=runs, sampler=facts["sampler"], rung=facts["rung"], path=folder)


def sum_amounts(spent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of what several runs have spent, by name."""
    return {name: sum(one[name] for one in spent) for name in amounts({})}


def _trial_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/{TRIAL_FILE}"), key=lambda file: int(file.parent.name))
