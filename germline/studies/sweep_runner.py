"""Run a sweep: trials by successive halving, a race of run seeds, and tests of the best trials.

A trial is a folder of run seeds, trained by `germline train` and continued by `germline resume`
from rung to rung, in processes of their own. All decisions are read from these folders, so any
number of processes can share a sweep, and the same command continues one that was stopped.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from germline.config.base import make_section
from germline.config.config_files import as_yaml
from germline.record.atomic_files import write_atomically, write_json
from germline.record.early_stopping import signed_score
from germline.record.run_paths import acquire_lock, is_locked, seed_run
from germline.studies.run_processes import STOPPED, RunProcesses
from germline.studies.run_seeds import train_seeds
from germline.studies.study_results import CellResult
from germline.studies.sweep import Sweep, SweepOptions, is_fixed
from germline.studies.sweep_results import (
    SHARED,
    TRIAL_FILE,
    TRIALS,
    SweepResults,
    SweepTrial,
    TrialState,
    read_json,
    score_at,
)
from germline.studies.sweep_selection import (
    collapse_of,
    halving,
    is_silent,
    race,
    trials_to_test,
)
from germline.studies.sweep_space import SweepSpace, overrides_of
from germline.types import GermlineError

POLL_S = 3.0
"""Seconds between two looks for work, while other processes train; each one reads all runs."""

FAILURES = 3
"""Trials that fail one after another, after which the sweep stops: it is not their settings."""

NO_SCORE = "no held-out score: all rewards are missing"
NO_SIGNAL = "no signal: all members earned the same, so no update moved the weights"

Work = tuple[Path, Callable[[Path], None]]
"""The folder of a trial to lock, and what to do there."""

End = tuple[TrialState, str]
"""The state in which a trial ends, and the reason."""


class _StoppedError(Exception):
    """The sweep was interrupted: the trial stays as it is."""


class SweepRunner(RunProcesses):
    """Runs what is left of a sweep.

    Args:
        sweep: the sweep.
        jobs: number of trials at the same time.
        on_end: sees every trial that has ended, and how its test has; empty without one.
    """

    def __init__(
        self,
        sweep: Sweep,
        jobs: int = 1,
        on_end: Callable[[SweepTrial, str], object] = lambda *_: None,
    ) -> None:
        super().__init__()
        self._sweep = sweep
        self._jobs = jobs
        self._on_end = on_end
        self._samplers = sweep.prepare()
        self._failed = 0  # the last trials, one after another
        self._untested: set[int] = set()  # trials whose test failed in this call

    def search(self) -> None:
        """Train trials until the budget is spent, then test the best ones.

        Trials that failed in an earlier call are tried again: their cause may be mended.

        Raises:
            GermlineError: no trial reached the last rung, or the storage cannot be used.
        """
        self._retry_failed()
        self._restore()
        self.in_threads(self._work, range(self._jobs), self._jobs)
        if self.is_stopping:
            return
        results = self._read()
        if not results.complete:
            reasons = "; ".join([*dict.fromkeys(one.reason for one in results.trials)][:3])
            raise GermlineError(
                f"sweep: none of {len(results.trials)} trials reached the last rung with a score "
                f"({reasons}): search other values, or give a larger budget"
            )
        shutil.rmtree(self._sweep.out / SHARED, ignore_errors=True)
        (self._sweep.out / "best.json").unlink(missing_ok=True)  # of an earlier call
        if (best := results.best) is None:
            return
        given = (one for one in self._sweep.overrides if not is_fixed(one.partition("=")[0]))
        overrides = [*given, *self._sweep.probed, *overrides_of(best.settings)]
        facts = {"number": best.number, "overrides": overrides, "spent": results.spent}
        write_json(self._sweep.out / "best.json", facts | {"seeds": self._sweep.seeds})

    def _read(self) -> SweepResults:
        return SweepResults(self._sweep.out)

    def _retry_failed(self) -> None:
        with self._sweep.lock:
            for trial in self._read().trials:
                if trial.state == "failed" and not is_locked(trial.path):
                    _update(trial.path, state="running", reason="")

    def _restore(self) -> None:
        """Give the samplers the trials that their storage has lost."""
        with self._sweep.lock:
            results = self._read()
            for sampler in self._sweep.options.samplers:
                told = {
                    read_json(one.path / TRIAL_FILE)["asked"]: (one.settings, _told(results, one))
                    for one in results.trials
                    if one.sampler == sampler
                }
                self._samplers.restore(sampler, told)

    def _work(self, _worker: int) -> None:
        while not self.is_stopping:
            with self._sweep.lock:
                is_busy = any(map(is_locked, (self._sweep.out / TRIALS).iterdir()))
                if work := self._next_work():
                    release = acquire_lock(work[0], self)
            if work:
                path, do = work
                try:
                    with suppress(_StoppedError):
                        do(path)
                finally:
                    release()
            elif is_busy:
                time.sleep(POLL_S)
            else:
                return

    def _next_work(self) -> Work | None:
        """Return what can be begun now; None while others have to end before, and at the end.

        The lock of a trial is released by the operating system when its process is killed.
        """
        results, options = self._read(), self._sweep.options
        locked = {one.number for one in results.trials if is_locked(one.path)}
        running = [one for one in results.trials if one.state == "running"]
        for trial in running:
            if trial.number not in locked:
                return trial.path, self._search
        work = self._begin(results, options.searched, self._sweep.stops[0])
        if work or running:
            return work
        raced = [
            (one, seeds, max(0.0, seeds * self._sweep.limit - one.spent["rollouts"]))
            for one, seeds in race(results, options.seeds, of_all=options.is_grid)
            if one.number not in locked or not one.tests  # in a test it is not in the race
        ]
        planned = [more for one, _, more in raced if one.number in locked]  # by other processes
        for one, seeds, more in raced:
            is_affordable = self._affords(results, options.budget.limits, sum(planned) + more)
            if one.number not in locked and is_affordable:
                return one.path, partial(self._race, seeds=seeds)
        if planned:
            return None
        if work := self._begin(results, options.budget.limits, self._sweep.limit):
            return work  # with what the race has left
        for one in trials_to_test(results) if self._sweep.test_seeds else []:
            is_tested = len(one.test_scores) == len(self._sweep.test_seeds)
            if not is_tested and one.number not in locked | self._untested:
                return one.path, self._test
        return None

    def _begin(
        self, results: SweepResults, limits: Mapping[str, float], rollouts: int
    ) -> Work | None:
        """Ask the sampler that has spent less for a trial, if so many rollouts are within limits.

        Nothing is left at the end of a grid.
        """
        if not self._affords(results, limits, rollouts, new=1):
            return None
        spent = dict.fromkeys(self._sweep.options.samplers, 0.0)
        for trial in results.trials:
            spent[trial.sampler] += max(trial.spent["rollouts"], self._sweep.rungs[0])
        sampler = min(spent, key=spent.__getitem__)
        asked = self._samplers.ask(sampler)
        if asked is None:
            return None
        number = len(results.trials)
        path = self._sweep.out / TRIALS / f"{number:04d}"
        path.mkdir(exist_ok=True)  # it is there if a process was killed here
        facts = {"number": number, "settings": asked[1], "state": "running", "reason": ""}
        write_json(path / TRIAL_FILE, {**facts, "sampler": sampler, "asked": asked[0]})
        return path, self._search

    def _affords(
        self, results: SweepResults, limits: Mapping[str, float], rollouts: float, *, new: int = 0
    ) -> bool:
        """Whether so many rollouts more are within limits, given what trials are training now."""
        spent = {**results.spent, "trials": len(results.trials) + new}
        spent["rollouts"] += rollouts
        stops = self._sweep.stops
        for one in results.trials:
            if one.state == "running":
                stop = next((stop for stop in stops if one.score_at(stop) is None), stops[-1])
                spent["rollouts"] += stop - one.spent["rollouts"]
        return all(
            spent[name] <= limit if name in ("rollouts", "trials") else spent[name] < limit
            for name, limit in limits.items()
        )

    def _search(self, path: Path) -> None:
        """Train a trial from rung to rung, until a rule stops it."""
        first, end = self._trial(path).runs[:1], None
        # The budget of a run is the rung it was last trained up to, perhaps without a decision.
        begun = max((one.config.budget.rollouts or 0 for one in first), default=0)
        for stop in self._sweep.stops:
            if stop >= begun:
                end = end or self._train(path, self._sweep.seeds[:1], stop)
                end = end or self._halve(path, stop)
        self._end(path, end)

    def _halve(self, path: Path, stop: int) -> End | None:
        """Return the end of a trial that does not go on after a rung."""
        *earlier, last = self._sweep.stops
        if stop == last:
            return None
        with self._sweep.lock:
            results = self._read()
            trial = next(one for one in results.trials if one.path == path)
            peers = [
                -math.inf if one.has_collapsed else signed_score(score)
                for one in results.trials
                if one.sampler == trial.sampler
                and one is not trial
                and one.runs  # the seed that this trial has; raced trials have more
                and (score := score_at(one.runs[0], stop)) is not None
            ]
            if reason := halving(trial.mean, peers):
                reason = f"rung {earlier.index(stop) + 1} of {len(earlier) + 1}: {reason}"
            elif not self._affords(results, self._sweep.options.budget.limits, 0):
                reason = "the budget is spent"
        return ("pruned", reason) if reason else None

    def _race(self, path: Path, seeds: int) -> None:
        """Train a complete trial with more run seeds."""
        self._end(path, self._train(path, self._sweep.seeds[:seeds], self._sweep.limit))

    def _test(self, path: Path) -> None:
        """Train one of the best trials with test seeds, and score it on unseen rows."""
        end = self._train(path, self._sweep.test_seeds, self._sweep.limit, is_test=True)
        trial = self._trial(path)
        if end:
            self._untested.add(trial.number)
        self._on_end(trial, end[1] if end else "complete")

    def _train(
        self, path: Path, seeds: Sequence[int], rollouts: int, *, is_test: bool = False
    ) -> End | None:
        """Train runs of a trial up to a rung; return its end, where it does not get there.

        A collapse ends no test, and no trial of a grid, which is to show where runs collapse.
        """
        settings = read_json(path / TRIAL_FILE)["settings"]
        planned, overrides = self._sweep.plan(settings, rollouts)
        for seed in seeds:
            run = seed_run(path, seed)
            while is_locked(run) and not self.is_stopping:
                time.sleep(POLL_S)  # its training outlived the process that began it
            try:
                train_seeds(planned, [seed], path).prepare()
                one = planned.model_copy(update={"seed": seed})
                failure = self.train(one, self._sweep.source, overrides, run)
                if is_test and not failure:
                    failure = self.evaluate(planned, run, ["--split unseen"])
                    failure = "" if "split=unseen" in failure else failure  # there are no such rows
            except GermlineError as error:
                failure = str(error)
            if failure == STOPPED:
                raise _StoppedError
            facts = None if failure else CellResult(run)
            if facts is None or not facts.scores:
                return "failed", failure or NO_SCORE
            if is_test or self._sweep.options.is_grid:
                continue
            if seed == self._sweep.base.seed and is_silent(facts):
                return "pruned", NO_SIGNAL
            if collapse := collapse_of(facts):
                return "pruned", collapse
        return None

    def _trial(self, path: Path) -> SweepTrial:
        return SweepTrial.read(path, self._sweep.seeds)

    def _end(self, path: Path, end: End | None) -> None:
        """Tell the sampler what a trial has reached, and write its state."""
        state, reason = end or ("complete", "")
        with self._sweep.lock:
            facts = read_json(path / TRIAL_FILE)
            trial = replace(self._trial(path), state=state, reason=reason)
            told = _told(self._read(), trial) or ()
            self._samplers.tell(facts["sampler"], facts["asked"], told)
            _update(path, state=state, reason=reason)
        self._on_end(trial, "")
        self._failed = self._failed + 1 if state == "failed" else 0
        if self._failed >= FAILURES:
            raise GermlineError(
                f"sweep: {FAILURES} trials failed one after another, the last one with: {reason}. "
                "Repeat the command to go on"
            )


def _told(results: SweepResults, trial: SweepTrial) -> list[float] | None:
    """Return what its sampler is told of a trial; None before its end."""
    if trial.state == "running":
        return None
    is_worst = trial.state == "failed" or trial.has_collapsed
    return results.worst() if is_worst else results.objectives(trial, trial.mean)


def _update(path: Path, **facts: str) -> None:
    write_json(path / TRIAL_FILE, read_json(path / TRIAL_FILE) | facts)


def sweep(
    config: Mapping[str, Any] | Path | str,
    over: Mapping[str, Any] | Path | str,
    out: Path | str,
    *,
    overrides: Sequence[str] = (),
    jobs: int = 1,
    **options: Any,
) -> SweepResults:
    """Search settings of a config within a budget of all trials; return what was found.

    Args:
        config: a config file, the name of a shipped config, or a mapping of settings.
        over: the space: a file, or setting -> range or list of values (`sweep_space`).
        out: the folder; that of a sweep which was stopped is continued.
        overrides: of the config.
        jobs: number of trials at the same time.
        options: of `SweepOptions`, such as `budget={"rollouts": 40_000}` and `sampler="gp"`.

    Raises:
        GermlineError: as for `Sweep` and `SweepRunner.search`.
    """
    folder = Path(out)
    if isinstance(config, Mapping):
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "config.yaml"
        write_atomically(source, as_yaml(dict(config)).encode())
        config = source
    space = SweepSpace(over) if isinstance(over, Mapping) else SweepSpace.read(Path(over))
    chosen = make_section(SweepOptions, options, "sweep: ", "")
    SweepRunner(Sweep(str(config), overrides, space, folder, chosen), jobs).search()
    return SweepResults(folder)
