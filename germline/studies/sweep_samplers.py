"""What Optuna does for a sweep: it proposes settings, and says which of them matter.

Each sampler has a study of its own in the storage, so that random search beside another sampler
lends it no trials. Samplers keep nothing between two calls except in the storage, so any number of
processes share a study. Seeds of samplers follow from the run seed and the number of trials.

Optuna's pruners, heartbeats and `best_trial` are not used: trials are stopped and locked by files
(`sweep_runner`), and the best of noisy trials is too good on average (`sweep_results`).

PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255) compares where the best trials lie with where all
of them lie. With few trials it is noisy: `importances` adds intervals, and a test by shuffling.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline.studies.sweep_space import Dimension, SweepSpace, rounded
from germline.types import GermlineError

STARTUP = 5
"""Random trials before a model of the scores is fitted."""

FEWEST_TRIALS, FEWEST_BEST = 10, 5
"""Trials without which no importance is computed; least number of trials that are the best."""

BEST, RESAMPLES = 0.1, 100
"""Share of the trials that count as the best; number of resamples, and of shuffles."""

Point = tuple[Mapping[str, Any], float]
"""Settings of a trial, and its score so that higher is better."""

TrialResult = tuple[Mapping[str, Any], Sequence[float] | None]
"""Settings of a trial, and its objectives; None of a trial that has not ended."""

UNKNOWN: TrialResult = ({}, None)
"""A trial that was asked for by a process that was killed before it wrote the settings."""


class Samplers:
    """The studies of a sweep in a storage of Optuna.

    Args:
        space: what is searched.
        storage: URL of a database, as of SQLAlchemy, such as `sqlite:///study.db`; or
            `journal://FILE` of a journal of Optuna, for folders where SQLite cannot lock.
        name: beginning of the names of the studies, which no other sweep has.
        objectives: how many numbers are to be large.
        seed: of random numbers.

    Raises:
        GermlineError: the storage cannot be reached, or Optuna is not installed.
    """

    def __init__(
        self, space: SweepSpace, storage: str, name: str, objectives: int, seed: int
    ) -> None:
        self._space, self._name, self._seed = space, name, seed
        self._directions = ["maximize"] * objectives
        self._url = without_password(storage)
        with self._explained():
            import optuna

            kind, _, file = storage.partition("://")
            if kind == "journal":
                backend = optuna.storages.journal.JournalFileBackend(file)
                self._storage = optuna.storages.JournalStorage(backend)
            else:
                self._storage = optuna.storages.get_storage(storage)

    def ask(self, sampler: str) -> tuple[int, dict[str, Any]] | None:
        """Return the number of a new trial of a sampler and its settings; None at a grid's end."""
        with self._explained():
            from optuna import samplers

            study = self._study(sampler)
            number = len(study.get_trials(deepcopy=False))
            if sampler == "grid":
                points = self._space.grid()
                np.random.default_rng(self._seed).shuffle(points)  # a part of it covers the space
                return (study.ask().number, points[number]) if number < len(points) else None
            kinds = {
                "tpe": partial(samplers.TPESampler, n_startup_trials=STARTUP, group=True),
                "gp": partial(samplers.GPSampler, n_startup_trials=STARTUP),
                "cmaes": samplers.CmaEsSampler,
            }
            made = kinds.get(sampler, samplers.RandomSampler)
            seed = f"sweep {self._seed} {sampler} {number}".encode()
            study.sampler = made(seed=int.from_bytes(hashlib.sha256(seed).digest()[:4]))
            trial = study.ask()
            return trial.number, self._space.settings(lambda one: suggest(trial, one))

    def tell(self, sampler: str, trials: Mapping[int, TrialResult]) -> None:
        """Tell a sampler all its trials, by the numbers of `ask`; what it was told before stays.

        Trials that the storage has lost are added.
        """
        with self._explained():
            import optuna

            study, running = self._study(sampler), [optuna.trial.TrialState.RUNNING]
            for n in range(len(study.get_trials(deepcopy=False)), max(trials, default=-1) + 1):
                study.add_trial(_trial(self._space, *trials.get(n, UNKNOWN)))
            for one in study.get_trials(deepcopy=False, states=running):
                if values := trials.get(one.number, UNKNOWN)[1]:
                    study.tell(one.number, [*values])

    def _study(self, sampler: str) -> Any:
        import optuna

        return optuna.create_study(
            storage=self._storage,
            study_name=f"{self._name}-{sampler}",
            directions=self._directions,
            load_if_exists=True,
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of Optuna or of its storage into one sentence."""
        try:
            with _quiet():
                yield
        except ImportError as error:
            raise GermlineError(
                f"sweep: {error}: a sweep needs the extra `sweep` (pip install 'germline[sweep]'); "
                "another database than SQLite also needs its driver"
            ) from None
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise GermlineError(
                f"sweep: the storage {self._url} cannot be used: {said.rstrip('.')}. Repeat the "
                "command when it can; if its file is damaged, delete that: all trials are kept in "
                "the folder of the sweep, and fill a new one"
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop Optuna's messages, and its warnings of what is experimental."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        yield


def without_password(url: str) -> str:
    """Return the URL of a database without user and password."""
    return re.sub(r"//[^/]*@", "//", url)


def suggest(trial: Any, dimension: Dimension) -> Any:
    """Return Optuna's value of a setting; values of lists are texts there, of any type here."""
    name, values = dimension.name, dimension.values
    if dimension.scale == "values":
        return json.loads(trial.suggest_categorical(name, [json.dumps(one) for one in values]))
    if dimension.scale == "int":
        return trial.suggest_int(name, *values)
    return rounded(trial.suggest_float(name, *values, log=dimension.scale == "log"))


@dataclass(frozen=True)
class Importance:
    """The share of a setting, its interval, and whether it is above 95 % of shuffled sweeps."""

    name: str
    share: float
    low: float
    high: float
    matters: bool


def importances(space: SweepSpace, points: Sequence[Point]) -> list[Importance]:
    """Return the importance of every setting, the largest first; empty with few trials."""
    if len(points) < FEWEST_TRIALS or len({score for _, score in points}) < 2:
        return []
    rng, count = np.random.default_rng(0), len(points)
    settings, scores = zip(*points, strict=True)
    drawn = [
        _divergences(space, [points[n] for n in rng.integers(count, size=count)])
        for _ in range(RESAMPLES)
    ]
    shuffled = [
        _divergences(space, [*zip(settings, rng.permutation(scores).tolist(), strict=True)])
        for _ in range(RESAMPLES)
    ]
    found = _divergences(space, points)
    matters = found > np.percentile(shuffled, 95, axis=0)
    low, high = np.percentile([one / (one.sum() or 1.0) for one in drawn], [2.5, 97.5], axis=0)
    names, shares = [one.name for one in space.dimensions], found / (found.sum() or 1.0)
    columns = zip(names, *(one.tolist() for one in (shares, low, high, matters)), strict=True)
    return sorted((Importance(*column) for column in columns), key=lambda one: -one.share)


def _divergences(space: SweepSpace, points: Sequence[Point]) -> Float64[np.ndarray, " settings"]:
    """Return Optuna's importances in the order of the space, which do not sum to 1."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    with _quiet():
        study = optuna.create_study(direction="maximize")
        study.add_trials([_trial(space, settings, [score]) for settings, score in points])
        best = max(BEST, FEWEST_BEST / len(points))
        evaluator = PedAnovaImportanceEvaluator(target_quantile=best)
        found = get_param_importances(study, evaluator=evaluator, normalize=False)
    return np.array([found.get(one.name, 0.0) for one in space.dimensions])


def _trial(space: SweepSpace, settings: Mapping[str, Any], values: Sequence[float] | None) -> Any:
    import optuna

    given = [one for one in space.dimensions if one.name in settings]
    texts = {one.name: json.dumps(settings[one.name]) for one in given if one.scale == "values"}
    fixed = optuna.trial.FixedTrial({**settings, **texts})
    for one in given:
        suggest(fixed, one)  # the trial keeps the distribution
    return optuna.trial.create_trial(
        state=getattr(optuna.trial.TrialState, "RUNNING" if values is None else "COMPLETE"),
        params=fixed.params,
        distributions=fixed.distributions,
        values=values,
    )
