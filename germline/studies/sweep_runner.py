"""Run a sweep: trials by successive halving, a race of run seeds, and tests of the best trials.

A trial is a folder of run seeds, trained by `germline train` and continued by `germline resume`
from rung to rung, in processes of their own. All decisions are read from these folders, so any
number of processes can share a sweep, and the same command continues one that was stopped.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from germline.config.config_files import as_yaml
from germline.record.atomic_files import write_atomically, write_json
from germline.record.early_stopping import signed_score
from germline.record.run_paths import is_locked
from germline.record.seed_study import seed_run
from germline.studies.run_processes import STOPPED, RunProcesses
from germline.studies.run_seeds import train_seeds
from germline.studies.study_results import CellResult
from germline.studies.sweep import Sweep, SweepOptions
from germline.studies.sweep_files import BEST_FILE, SHARED, TESTS, TRIAL_FILE, TRIALS, read_json
from germline.studies.sweep_lease import is_leased, kept_lease, leases_of, take_lease
from germline.studies.sweep_results import COLLAPSED, SweepResults, SweepTrial, read_trial
from germline.studies.sweep_selection import collapse_of, halving, race, trials_to_test
from germline.studies.sweep_space import SweepSpace, overrides_of
from germline.types import GermlineError

POLL_S = 1.0
"""Seconds between two looks for work, while other processes train."""

FAILURES = 3
"""Trials that fail one after another, after which the sweep stops: it is not their settings."""

NO_SCORE = "no held-out score: all rewards are missing"

Work = tuple[Path, Callable[[], None]]

WAIT: Work = (Path(), lambda: None)
"""Nothing can be begun while others train."""


class SweepRunner(RunProcesses):
    """Runs what is left of a sweep.

    Args:
        sweep: the sweep.
        jobs: number of trials at the same time.
        on_end: sees every trial that ends, and every test.
    """

    def __init__(
        self,
        sweep: Sweep,
        jobs: int = 1,
        on_end: Callable[[SweepTrial], object] = lambda _trial: None,
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
        overrides = [*self._sweep.probed, *overrides_of(dict(best.settings))]
        facts = {"number": best.number, "overrides": overrides, "spent": results.spent}
        write_json(self._sweep.out / BEST_FILE, facts)

    def _retry_failed(self) -> None:
        with self._sweep.lock:
            results = SweepResults(self._sweep.out)
            for trial in (*results.trials, *results.tests):
                if trial.state == "failed" and not is_leased(trial.path):
                    facts = read_json(trial.path / TRIAL_FILE)
                    write_json(trial.path / TRIAL_FILE, facts | {"state": "running", "reason": ""})

    def _work(self, _worker: int) -> None:
        while not self.is_stopping:
            with self._sweep.lock:
                leases = leases_of(self._sweep.out)
                work = self._next_work()
                if work is not None and work is not WAIT:
                    take_lease(work[0])
            if work is None:
                return
            if work is WAIT:
                # Reading all runs is slow, and new work comes only from a lease that ends.
                while leases_of(self._sweep.out) == leases and not self.is_stopping:
                    time.sleep(POLL_S)
            else:
                with kept_lease(work[0]):
                    work[1]()

    def _next_work(self) -> Work | None:
        """Return a folder to lease and what to do there; None at the end."""
        results = SweepResults(self._sweep.out)
        busy = [one for one in results.trials if is_leased(one.path)]
        for trial in results.trials:
            if trial.state == "running" and trial not in busy:
                return trial.path, partial(self._search, trial.path)
        options, limit = self._sweep.options, self._sweep.limit
        first = self._sweep.rungs[self._sweep.first_rung]
        if self._affords(results, options.searched, first, new=1) and (
            path := self._begin(results)
        ):
            return path, partial(self._search, path)
        if any(one.state == "running" for one in busy):
            return WAIT
        planned = 0.0  # rollouts of the race that other processes train now
        short = [*race(results, options.seeds, of_all=options.is_grid)]
        for racing, seeds in sorted(short, key=lambda one: one[0] not in busy):
            more = max(0.0, seeds * limit - racing.spent["rollouts"])
            if racing in busy:
                planned += more
            elif self._affords(results, options.budget, planned + more):
                return racing.path, partial(self._race, racing.path, seeds)
        if busy:
            return WAIT
        if self._affords(results, options.budget, limit, new=1) and (path := self._begin(results)):
            return path, partial(self._search, path)  # what the race has left
        return self._next_test(results)

    def _next_test(self, results: SweepResults) -> Work | None:
        if not self._sweep.test_seeds or not results.complete:
            return None
        tests = self._tests_of(results)
        for path in tests:
            facts = read_json(path / TRIAL_FILE)
            if facts["state"] == "running" and not is_leased(path):
                return path, partial(self._test, path)
        return WAIT if any(map(is_leased, tests)) else None

    def _tests_of(self, results: SweepResults) -> list[Path]:
        """Return the folders of tests, made for the best trials so far."""
        folder, best = self._sweep.out / TESTS, trials_to_test(results)
        seeds = self._sweep.test_seeds
        names = [folder / str(rank) for rank, _ in enumerate(best, 1)]
        if any(is_leased(one.path) for one in results.tests):
            return [one.path for one in results.tests]  # until they have ended
        if [one.number for one in results.tests] != [one.number for one in best]:
            if results.tests:  # of a smaller budget, when other trials were the best
                old = len([*self._sweep.out.glob(f"{TESTS}-old-*")])
                folder.rename(folder.with_name(f"{TESTS}-old-{old}"))
            for path, trial in zip(names, best, strict=True):
                path.mkdir(parents=True, exist_ok=True)
                facts = {**read_json(trial.path / TRIAL_FILE), "state": "running", "seeds": seeds}
                write_json(path / TRIAL_FILE, facts)
        return names

    def _begin(self, results: SweepResults) -> Path | None:
        """Ask for a new trial, of the sampler that has spent less; None at the end of a grid."""
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
        more = {"sampler": sampler, "asked": asked[0], "scores": [], "rung": self._sweep.first_rung}
        write_json(path / TRIAL_FILE, facts | more)
        return path

    def _affords(
        self, results: SweepResults, limits: Mapping[str, float], rollouts: float, *, new: int = 0
    ) -> bool:
        """Whether so many rollouts more are within limits, given what trials are training now."""
        spent: dict[str, float] = {**results.spent, "trials": len(results.trials)}
        rungs, running = self._sweep.rungs, [t for t in results.trials if t.state == "running"]
        planned = sum(rungs[min(one.rung, len(rungs) - 1)] for one in running)
        spent["rollouts"] += rollouts + planned - sum(one.spent["rollouts"] for one in running)
        spent["trials"] += new
        return all(
            spent[name] <= limit if name in ("rollouts", "trials") else spent[name] < limit
            for name, limit in limits.items()
        )

    def _search(self, path: Path) -> None:
        """Train a trial from rung to rung, until a rule stops it."""
        facts = read_json(path / TRIAL_FILE)
        seed, rungs = self._sweep.seeds[0], self._sweep.rungs
        for rung in range(facts["rung"], len(rungs)):
            failure = self._train(path, facts["settings"], seed, rungs[rung])
            if failure == STOPPED:
                return
            run = None if failure else CellResult(seed_run(path, seed))
            if run is None or not run.scores:
                self._end(path, facts | {"state": "failed", "reason": failure or NO_SCORE})
                return
            scores = [*facts["scores"], signed_score(run.scores[-1])]
            facts |= {"rung": rung + 1, "scores": scores}
            if collapse := self._collapse(run):
                self._end(path, facts | {"state": "pruned", "reason": collapse})
                return
            write_json(path / TRIAL_FILE, facts)
            if rung + 1 < len(rungs) and (reason := self._stops(path, facts)):
                self._end(path, facts | {"state": "pruned", "reason": reason})
                return
        self._end(path, facts | {"state": "complete"})

    def _stops(self, path: Path, facts: dict[str, Any]) -> str:
        """Return why a trial does not go on to its next rung; empty if it does."""
        if self._sweep.options.is_grid:
            return ""
        with self._sweep.lock:
            results = SweepResults(self._sweep.out)
            rung, peers = facts["rung"], []
            for one in results.trials:
                scores = read_json(one.path / TRIAL_FILE)["scores"]
                if one.sampler == facts["sampler"] and one.path != path and len(scores) >= rung:
                    peers.append(-math.inf if one.has_collapsed else scores[rung - 1])
            if reason := halving(facts["scores"][-1], peers):
                return f"rung {rung} of {len(self._sweep.rungs)}: {reason}"
            budget = self._sweep.options.budget
            return "" if self._affords(results, budget, 0) else "the budget is spent"

    def _collapse(self, run: CellResult) -> str:
        """Return why a collapse ends a trial; a grid is to show where runs collapse."""
        return "" if self._sweep.options.is_grid else collapse_of(run)

    def _race(self, path: Path, seeds: int) -> None:
        """Train a complete trial with more run seeds."""
        facts = read_json(path / TRIAL_FILE)
        for seed in self._sweep.seeds[:seeds]:
            failure = self._train(path, facts["settings"], seed, self._sweep.limit)
            if failure == STOPPED:
                return
            run = None if failure else CellResult(seed_run(path, seed))
            if run is None or not run.scores:
                facts |= {"state": "failed", "reason": failure or NO_SCORE}
            elif reason := self._collapse(run):
                facts |= {"state": "pruned", "reason": reason}
            if facts["state"] != "complete":
                break
        write_json(path / TRIAL_FILE, facts)
        self._on_end(read_trial(path))

    def _test(self, path: Path) -> None:
        """Train one of the best trials with test seeds, and score it on unseen rows."""
        facts = read_json(path / TRIAL_FILE)
        for seed in self._sweep.test_seeds:
            failure = self._train(path, facts["settings"], seed, self._sweep.limit)
            if not failure:
                failure = self._evaluate_unseen(path, facts["settings"], seed)
            if failure == STOPPED:
                return
            facts["reason"] = failure or facts["reason"]
        state = "failed" if facts["reason"] else "complete"
        write_json(path / TRIAL_FILE, {**facts, "state": state})
        self._on_end(read_trial(path))

    def _evaluate_unseen(self, path: Path, settings: dict[str, Any], seed: int) -> str:
        planned, _ = self._sweep.plan(settings, self._sweep.limit)
        failure = self.evaluate(planned, seed_run(path, seed), ["--split unseen"])
        return "" if "split=unseen" in failure else failure  # there are no such rows

    def _train(self, path: Path, settings: dict[str, Any], seed: int, rollouts: int) -> str:
        """Train a run of a trial up to a rung; return why it failed."""
        planned, overrides = self._sweep.plan(settings, rollouts)
        run = seed_run(path, seed)
        while is_locked(run) and not self.is_stopping:
            time.sleep(POLL_S)  # its training outlived the process that began it
        try:
            train_seeds(planned, [seed], path).prepare()
            planned = planned.model_copy(update={"seed": seed})
            return self.train(planned, self._sweep.source, overrides, run)
        except GermlineError as error:
            return str(error)

    def _end(self, path: Path, facts: dict[str, Any]) -> None:
        """Tell the sampler what a trial has reached, and write its state."""
        is_worst = facts["state"] == "failed" or facts["reason"].startswith(COLLAPSED)
        with self._sweep.lock:
            some = SweepResults(self._sweep.out).trials if is_worst else [read_trial(path)]
            self._samplers.tell(
                facts["sampler"], facts["asked"], self._worst(some, with_start=is_worst)
            )
            write_json(path / TRIAL_FILE, facts)
        self._on_end(read_trial(path))
        self._failed = self._failed + 1 if facts["state"] == "failed" else 0
        if self._failed >= FAILURES:
            raise GermlineError(
                f"sweep: {FAILURES} trials failed one after another, the last one with: "
                f"{facts['reason']}. Repeat the command to go on"
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
    plan = Sweep(str(config), overrides, space, folder, SweepOptions(**options))
    SweepRunner(plan, jobs).search()
    return SweepResults(folder)
