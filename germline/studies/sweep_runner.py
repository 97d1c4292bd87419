"""Run a sweep: trials by successive halving, a race of run seeds, and tests of the best trials.

A trial is a folder of run seeds, trained by `germline train` and continued by `germline resume`
from rung to rung, in processes of their own. All decisions are read from these folders, so any
number of processes can share a sweep, and the same command continues one that was stopped.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from germline.config.base import make_section
from germline.config.config_files import as_yaml
from germline.record.atomic_files import read_json, write_atomically, write_json
from germline.record.early_stopping import MINUTE_S, signed_score
from germline.record.run_paths import acquire_lock, is_locked, seed_run
from germline.studies.run_processes import STOPPED, RunProcesses
from germline.studies.run_seeds import train_seeds
from germline.studies.study_results import CellResult
from germline.studies.sweep import FIXED, Sweep, SweepOptions
from germline.studies.sweep_results import SHARED, TRIAL_FILE, SweepResults, SweepTrial, TrialState
from germline.studies.sweep_selection import collapse_of, halving, is_silent, race, trials_to_test
from germline.studies.sweep_space import SweepSpace, overrides_of
from germline.types import GermlineError

POLL_S = 3.0
"""Seconds between two looks for work, while other processes train; each one reads all runs."""

FAILURES = 3
"""Trials that fail one after another, after which the sweep stops: it is not their settings."""

ASKS = 20
"""Proposals of a sampler, all of them trials that it has, after which its search has ended."""

NO_SIGNAL = "no signal: all members earned the same, so no update moved the weights"

Work = tuple[Path, Callable[[Path], None]]
"""The folder of a trial to lock, and what to do there."""

End = tuple[TrialState, str]
"""The state in which a trial ends, and the reason; `running` if it was stopped with the sweep."""


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
        self._sweep, self._jobs, self._on_end = sweep, jobs, on_end
        self._samplers = sweep.prepare()
        self._in_a_row = 0  # the last trials that failed, one after another
        self._untested: set[Path] = set()  # trials whose test failed in this call
        self._retried: set[Path] = set()  # trials that had failed before it
        self._exhausted: set[str] = set()  # samplers that propose nothing new

    def search(self) -> None:
        """Train trials until the budget is spent, then test the best ones.

        Trials that failed in an earlier call are tried again: their cause may be mended.

        Raises:
            GermlineError: trials fail one after another, or the storage cannot be used.
        """
        self._retry_failed()
        self.in_threads(self._work, range(self._jobs), self._jobs)
        if self.is_stopping:
            return
        sweep, results = self._sweep, SweepResults(self._sweep.out)
        shutil.rmtree(sweep.out / SHARED, ignore_errors=True)
        (sweep.out / "best.json").unlink(missing_ok=True)  # of an earlier call
        if best := results.best:
            given = [one for one in sweep.overrides if not FIXED.fullmatch(one.partition("=")[0])]
            overrides = [*given, *sweep.probed, *overrides_of(best.settings)]
            facts = {"number": best.number, "overrides": overrides, "spent": results.spent}
            write_json(sweep.out / "best.json", facts | {"seeds": sweep.seeds})

    def _retry_failed(self) -> None:
        with self._sweep.lock:
            for one in SweepResults(self._sweep.out).trials:
                if one.state == "failed" and not is_locked(one.path):
                    _write(one.path, state="running", reason="")
                    self._retried.add(one.path)

    def _work(self, _worker: int) -> None:
        while not self.is_stopping:
            with self._sweep.lock:
                is_busy = any(map(is_locked, self._sweep.trials.iterdir()))
                if work := self._next_work():
                    release = acquire_lock(work[0], self)
            if work:
                path, do = work
                try:
                    do(path)
                finally:
                    release()
            elif is_busy:
                time.sleep(POLL_S)
            else:
                return

    def _next_work(self) -> Work | None:
        """Return what can be begun now; None while others have to end before, and at the end."""
        results, options = SweepResults(self._sweep.out), self._sweep.options
        limits, trials = options.budget.limits, results.trials
        free = [one for one in trials if not is_locked(one.path)]
        for one in free:
            if one.state == "running" or (one.is_open and self._affords(results, limits, 0)):
                return one.path, self._search
            if one.is_open:  # the race has spent the budget
                _write(one.path, seeds=len(one.signed_scores))
                return self._next_work()
        # Until a trial is complete, new ones leave enough for one, which the best of them needs.
        needed = self._sweep.stops[0] if results.complete else self._sweep.limit
        work = self._begin(results, options.searched, needed)
        # A trial that is locked and not open is in a test, or another process has just ended it.
        if work or any(one.is_open or not (one in free or one.tests) for one in trials):
            return work
        if self._race(results, free):
            return self._next_work()
        if work := self._begin(results, limits, self._sweep.limit):
            return work  # with what the race has left
        for one in trials_to_test(results) if self._sweep.test_seeds else []:
            is_tested = len(one.tested.counted) == len(self._sweep.test_seeds)
            if not is_tested and one in free and one.path not in self._untested:
                return one.path, self._test
        return None

    def _race(self, results: SweepResults, free: Sequence[SweepTrial]) -> bool:
        """Give trials more run seeds, as far as these are within limits; return whether any has."""
        planned: list[float] = []
        options = self._sweep.options
        for one, seeds in race(results, options.seeds):
            more = max(0.0, seeds * self._sweep.limit - one.spent["rollouts"])
            if one in free and self._affords(results, options.budget.limits, sum(planned) + more):
                _write(one.path, seeds=seeds)
                planned.append(more)
        return bool(planned)

    def _begin(
        self, results: SweepResults, limits: Mapping[str, float], rollouts: int
    ) -> Work | None:
        """Ask the sampler that has spent less for a trial, if so many rollouts are within limits.

        Nothing is left at the end of a grid, and where the sampler repeats its trials.
        """
        spent: dict[str, float] = {}
        for name, trials in results.by_sampler.items():
            told = {one.asked: (one.settings, results.told(one)) for one in trials}
            self._samplers.tell(name, told)
            spent[name] = sum(max(one.spent["rollouts"], self._sweep.rungs[0]) for one in trials)
        if not self._affords(results, limits, rollouts * len(self._sweep.first_seeds), new=1):
            return None
        sampler, number = min(spent, key=spent.__getitem__), len(results.trials)
        known = [one.settings for one in results.by_sampler[sampler]]
        asks = (self._samplers.ask(sampler) for _ in range(ASKS) if sampler not in self._exhausted)
        asked = next((one for one in asks if not one or one[1] not in known), None)
        if asked is None:
            self._exhausted.add(sampler)
            return None
        path = self._sweep.trials / f"{number:04d}"
        path.mkdir(exist_ok=True)  # it is there if a process was killed here
        facts = {"number": number, "sampler": sampler, "asked": asked[0], "settings": asked[1]}
        facts |= {"state": "running", "reason": "", "seeds": len(self._sweep.first_seeds)}
        write_json(path / TRIAL_FILE, facts)
        return path, self._search

    def _affords(
        self, results: SweepResults, limits: Mapping[str, float], rollouts: float, *, new: int = 0
    ) -> bool:
        """Whether so many rollouts more are within limits, given what trials are training now."""
        spent = {**results.spent, "trials": len(results.trials) + new}
        spent["rollouts"] += rollouts
        stops = self._sweep.stops
        for one in results.trials:
            if one.is_open:
                stop = next((stop for stop in stops if not one.at(stop)), stops[-1])
                spent["rollouts"] += max(0.0, stop * one.seeds - one.spent["rollouts"])
        return all(
            spent[name] <= limit if name in ("rollouts", "trials") else spent[name] < limit
            for name, limit in limits.items()
        )

    def _search(self, path: Path) -> None:
        """Train a trial with its run seeds from rung to rung, until a rule stops it."""
        # The budget of a run is the rung it was last trained up to, perhaps without a decision.
        trial = self._trial(path)
        if not trial.is_open:  # another process has just ended it
            return
        seeds = self._sweep.seeds[: trial.seeds]
        begun = max((one.config.budget.rollouts or 0 for one in trial.runs[:1]), default=0)
        stops = [stop for stop in self._sweep.stops if stop >= begun]
        ends = (self._train(path, seeds, stop) or self._halve(path, stop) for stop in stops)
        self._end(path, *next(filter(None, ends), ("complete", "")))

    def _halve(self, path: Path, stop: int) -> End | None:
        """Return the end of a trial that does not go on after a rung."""
        *earlier, last = self._sweep.stops
        if stop == last:
            return None
        results = SweepResults(self._sweep.out)
        trial = next(one for one in results.trials if one.path == path)
        peers = [  # by the run seed that this trial has; raced trials have more
            -math.inf if one.state == "collapsed" else signed_score(one.at(stop)[0][1])
            for one in results.by_sampler[trial.sampler]
            if one is not trial and one.at(stop)
        ]
        if reason := halving(trial.mean, peers):
            return "pruned", f"rung {earlier.index(stop) + 1} of {len(earlier) + 1}: {reason}"
        is_affordable = self._affords(results, self._sweep.options.budget.limits, 0)
        return None if is_affordable else ("pruned", "the budget is spent")

    def _test(self, path: Path) -> None:
        """Train one of the best trials with test seeds, and score it on unseen rows."""
        end = self._train(path, self._sweep.test_seeds, self._sweep.limit, is_test=True)
        state, reason = end or ("complete", "")
        if state == "failed":
            self._untested.add(path)
        if state != "running":
            self._on_end(self._trial(path), reason or state)

    def _train(
        self, path: Path, seeds: Sequence[int], rollouts: int, *, is_test: bool = False
    ) -> End | None:
        """Train runs of a trial up to a rung; return its end, where it does not get there.

        A collapse ends no test, and no trial of a grid, which is to show where runs collapse.
        """
        for seed in seeds:
            failure = self._train_seed(path, seed, rollouts, is_test=is_test)
            if failure == STOPPED:
                return "running", ""
            if failure or not (facts := CellResult(seed_run(path, seed))).scores:
                return "failed", failure or "no held-out score: all rewards are missing"
            if is_test or self._sweep.options.is_grid:
                continue
            if seed == self._sweep.base.seed and is_silent(facts):
                return "pruned", NO_SIGNAL
            if collapse := collapse_of(facts):
                return "collapsed", collapse
        return None

    def _train_seed(self, path: Path, seed: int, rollouts: int, *, is_test: bool) -> str:
        """Train one run, a test until it has a score on unseen rows; return why it failed."""
        run = seed_run(path, seed)
        while is_locked(run) and not self.is_stopping:
            time.sleep(POLL_S)  # its training outlived the process that began it
        began, trial = time.monotonic(), self._trial(path)
        try:
            planned, overrides = self._sweep.plan(trial.settings, rollouts)
            planned = planned.model_copy(update={"seed": seed})
            train_seeds(planned, [seed], path).prepare()
            failure = self.train(planned, self._sweep.source, overrides, run)
            if is_test and not failure:
                failure = self.evaluate(planned, run, ["--split unseen"])
                failure = "" if "split=unseen" in failure else failure  # there are no such rows
        except GermlineError as error:
            failure = str(error)
        if not is_test:
            trained = self._trial(path).spent["minutes"] - trial.spent["minutes"]
            others = max(0.0, (time.monotonic() - began) / MINUTE_S - trained)
            _write(path, other_minutes=trial.other_minutes + others)
        return failure

    def _trial(self, path: Path) -> SweepTrial:
        return SweepTrial.read(path, self._sweep.seeds)

    def _end(self, path: Path, state: TrialState, reason: str) -> None:
        """Write how a trial has ended; one that was interrupted goes on later."""
        if state == "running":
            return
        _write(path, state=state, reason=reason)
        self._on_end(self._trial(path), "")
        if state != "failed":
            self._in_a_row = 0
        elif path not in self._retried:
            self._in_a_row += 1
        if self._in_a_row >= FAILURES:
            raise GermlineError(
                f"sweep: {FAILURES} trials failed one after another, the last one with: {reason}. "
                "Repeat the command to go on"
            )


def _write(path: Path, **facts: object) -> None:
    """Change facts of a trial; its lock is held, or that of the sweep while the trial is free."""
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
        source = folder / ".config.yaml"  # a folder with other files is refused
        write_atomically(source, as_yaml(dict(config)).encode())
        config = source
    space = SweepSpace(over)
    chosen = make_section(SweepOptions, options, "sweep: ", "")
    SweepRunner(Sweep(str(config), overrides, space, folder, chosen), jobs).search()
    return SweepResults(folder)
