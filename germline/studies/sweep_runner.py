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
from germline.studies.sweep import Sweep, is_fixed
from germline.studies.sweep_files import BEST_FILE, SHARED, TRIAL_FILE, TRIALS, read_json
from germline.studies.sweep_options import SweepOptions
from germline.studies.sweep_results import (
    COLLAPSED,
    TESTED,
    TESTING,
    SweepResults,
    SweepTrial,
    read_trial,
    score_at,
)
from germline.studies.sweep_selection import collapse_of, halving, race, trials_to_test
from germline.studies.sweep_space import SweepSpace, overrides_of
from germline.types import GermlineError

POLL_S = 1.0
"""Seconds between two looks for work, while other processes train."""

FAILURES = 3
"""Trials that fail one after another, after which the sweep stops: it is not their settings."""

NO_SCORE = "no held-out score: all rewards are missing"

COMPLETE = {"state": "complete", "reason": ""}
"""The facts of a trial that nothing has ended before its last run."""

Work = tuple[Path, Callable[[Path], None]]
"""The folder of a trial to lock, and what to do there."""


class _StoppedError(Exception):
    """The sweep was interrupted: the trial stays as it is."""


class SweepRunner(RunProcesses):
    """Runs what is left of a sweep.

    Args:
        sweep: the sweep.
        jobs: number of trials at the same time.
        on_end: sees every trial, and which one of its `trial` and its `test` has ended.
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

    def search(self) -> None:
        """Train trials until the budget is spent, then test the best ones.

        Trials that failed in an earlier call are tried again: their cause may be mended.

        Raises:
            GermlineError: no trial reached the last rung, or the storage cannot be used.
        """
        self._retry_failed()
        self.in_threads(self._work, range(self._jobs), self._jobs)
        results = SweepResults(self._sweep.out)
        if self.is_stopping:
            return
        if not results.complete:
            reasons = "; ".join([*dict.fromkeys(one.reason for one in results.trials)][:3])
            raise GermlineError(
                f"sweep: none of {len(results.trials)} trials reached the last rung with a score "
                f"({reasons}): search smaller values, or give a larger budget"
            )
        shutil.rmtree(self._sweep.out / SHARED, ignore_errors=True)
        best = results.ranked[0]
        given = (one for one in self._sweep.overrides if not is_fixed(one.partition("=")[0]))
        overrides = [*given, *self._sweep.probed, *overrides_of(dict(best.settings))]
        facts = {"number": best.number, "overrides": overrides, "spent": results.spent}
        write_json(self._sweep.out / BEST_FILE, facts)

    def _retry_failed(self) -> None:
        with self._sweep.lock:
            for trial in SweepResults(self._sweep.out).trials:
                if trial.state == "failed" and not is_locked(trial.path):
                    _update(trial.path, state="running", reason="")
                elif trial.test not in ("", TESTED) and not is_locked(trial.path):
                    _update(trial.path, test="")

    def _work(self, _worker: int) -> None:
        while not self.is_stopping:
            with self._sweep.lock:
                busy = self._busy()
                if work := self._next_work():
                    release = acquire_lock(work[0], self)
            if work:
                path, do = work
                try:
                    with suppress(_StoppedError):
                        do(path)
                finally:
                    release()
            elif not busy:
                return
            # Reading all runs is slow, and new work comes only from a trial that ends.
            while not work and self._busy() == busy and not self.is_stopping:
                time.sleep(POLL_S)

    def _busy(self) -> dict[Path, float]:
        """Return the trials that a process works on, with the time they were last written."""
        files = (self._sweep.out / TRIALS).glob(f"*/{TRIAL_FILE}")
        return {one: one.stat().st_mtime for one in files if is_locked(one.parent)}

    def _next_work(self) -> Work | None:
        """Return what can be begun now; None while others have to end before, and at the end.

        The lock of a trial is released by the operating system when its process is killed.
        """
        results = SweepResults(self._sweep.out)
        locked = {one.number for one in results.trials if is_locked(one.path)}
        options, limit = self._sweep.options, self._sweep.limit
        in_test = {one.number for one in results.trials if one.test == TESTING} & locked
        running = [one for one in results.trials if one.state == "running"]
        for trial in running:
            if trial.number not in locked:
                return trial.path, self._search
        work = self._begin(results, options.searched, self._sweep.stops[0])
        if work or running:
            return work
        planned, is_racing = 0.0, False  # of the race that other processes train now
        raced = race(results, options.seeds, of_all=options.is_grid)
        short = [one for one in raced if one[0].number not in in_test]
        for racing, seeds in sorted(short, key=lambda one: one[0].number not in locked):
            more = max(0.0, seeds * limit - racing.rollouts)
            if racing.number in locked:
                planned, is_racing = planned + more, True
            elif self._affords(results, options.budget.limits, planned + more):
                return racing.path, partial(self._race, seeds=seeds)
        if is_racing:
            return None
        if work := self._begin(results, options.budget.limits, limit):
            return work  # with what the race has left
        tests = trials_to_test(results) if self._sweep.test_seeds else []
        untested = (
            one.path for one in tests if one.test in ("", TESTING) and one.number not in locked
        )
        return next(((path, self._test) for path in untested), None)

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
        write_json(path / TRIAL_FILE, {**facts, "sampler": sampler, "asked": asked[0], "test": ""})
        return path, self._search

    def _affords(
        self, results: SweepResults, limits: Mapping[str, float], rollouts: float, *, new: int = 0
    ) -> bool:
        """Whether so many rollouts more are within limits, given what trials are training now."""
        spent: dict[str, float] = {**results.spent, "trials": len(results.trials)}
        stops = self._sweep.stops
        for one in results.trials:
            if one.state == "running":
                stop = next((stop for stop in stops if one.score_at(stop) is None), stops[-1])
                spent["rollouts"] += stop - one.rollouts
            elif one.runs and one.runs[0].rows:  # it counts though it shared all: searches must end
                first = one.runs[0].rows[0]["rollouts"]
                spent["rollouts"] += max(0.0, first - one.spent["rollouts"])
        spent["rollouts"] += rollouts
        spent["trials"] += new
        return all(
            spent[name] <= limit if name in ("rollouts", "trials") else spent[name] < limit
            for name, limit in limits.items()
        )

    def _search(self, path: Path) -> None:
        """Train a trial from rung to rung, until a rule stops it."""
        trial, stops = self._read(path), self._sweep.stops
        end: dict[str, str] = {}
        # The budget of a run is the rung it was last trained up to, perhaps without a decision.
        begun = max((one.config.budget.rollouts or 0 for one in trial.runs[:1]), default=0)
        for stop in [one for one in stops if one >= begun]:
            end = end or self._train(path, self._sweep.seeds[:1], stop) or self._halve(path, stop)
        self._end(path, end or COMPLETE)

    def _halve(self, path: Path, stop: int) -> dict[str, str]:
        """Return the facts of a trial that does not go on after a rung; empty if it does."""
        *earlier, last = self._sweep.stops
        if stop == last:
            return {}
        with self._sweep.lock:
            results = SweepResults(self._sweep.out)
            trial = next(one for one in results.trials if one.path == path)
            peers = [
                -math.inf if one.has_collapsed else signed_score(score)
                for one in results.trials
                if one.sampler == trial.sampler
                and one is not trial
                and one.runs  # the seed that this trial has; raced trials have more
                and (score := score_at(one.runs[0], stop)) is not None
            ]
            reason = halving(trial.mean, peers)
            if reason:
                reason = f"rung {earlier.index(stop) + 1} of {len(earlier) + 1}: {reason}"
            elif not self._affords(results, self._sweep.options.budget.limits, 0):
                reason = "the budget is spent"
        return {"state": "pruned", "reason": reason} if reason else {}

    def _race(self, path: Path, seeds: int) -> None:
        """Train a complete trial with more run seeds."""
        end = self._train(path, self._sweep.seeds[:seeds], self._sweep.limit)
        self._end(path, end or COMPLETE)

    def _test(self, path: Path) -> None:
        """Train one of the best trials with test seeds, and score it on unseen rows."""
        seeds = self._sweep.test_seeds
        _update(path, test=TESTING)
        reason = self._train(path, seeds, self._sweep.limit, is_test=True).get("reason")
        _update(path, test=reason or TESTED)
        self._on_end(self._read(path), "test")

    def _train(
        self, path: Path, seeds: Sequence[int], rollouts: int, *, is_test: bool = False
    ) -> dict[str, str]:
        """Train runs of a trial up to a rung; return its facts where that ends it, else nothing.

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
                return {"state": "failed", "reason": failure or NO_SCORE}
            can_collapse = not is_test and not self._sweep.options.is_grid
            if can_collapse and (collapse := collapse_of(facts)):
                return {"state": "pruned", "reason": collapse}
        return {}

    def _read(self, path: Path) -> SweepTrial:
        return read_trial(path, self._sweep.seeds)

    def _end(self, path: Path, end: dict[str, str]) -> None:
        """Tell the sampler what a trial has reached, and write its state."""
        is_failed = end["state"] == "failed"
        is_worst = is_failed or end["reason"].startswith(COLLAPSED)
        facts = read_json(path / TRIAL_FILE)
        with self._sweep.lock:
            some = SweepResults(self._sweep.out).trials if is_worst else [self._read(path)]
            worst = self._worst(some, with_start=is_worst)
            self._samplers.tell(facts["sampler"], facts["asked"], worst)
            _update(path, **end)
        self._on_end(self._read(path), "trial")
        self._failed = self._failed + 1 if is_failed else 0
        if self._failed >= FAILURES:
            raise GermlineError(
                f"sweep: {FAILURES} trials failed one after another, the last one with: "
                f"{end['reason']}. Repeat the command to go on"
            )

    def _worst(self, trials: Sequence[SweepTrial], *, with_start: bool) -> list[float]:
        """Return the worst value of each objective of some trials, perhaps before training too."""
        runs = [run for one in trials for run in one.runs if run.scores and with_start]
        scores = [one.mean for one in trials if one.signed_scores]
        found = {
            "score": min([*scores, *(signed_score(run.scores[0]) for run in runs)], default=0.0),
            "peak_memory": max(one.peak_memory_mb for one in trials),
            "tokens": max(one.tokens for one in trials),
        }
        return [found[name] for name in self._sweep.options.objectives]


def _update(path: Path, **facts: str) -> None:
    """Change facts of a trial."""
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
