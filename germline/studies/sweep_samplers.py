"""Samplers of a sweep: Optuna proposes settings (ask) and is told their scores (tell).

Each sampler has a study of its own in the storage, so that random search beside another sampler
lends it no trials. Samplers keep nothing between two calls except in the storage, so any number of
processes share a study. Seeds of samplers follow from the run seed and the number of trials.

Optuna's pruners, heartbeats and `best_trial` are not used: trials are stopped and locked by files
(`sweep_runner`), and the best of noisy trials is too good on average (`sweep_results`). A trial
that is stopped at a rung is told with its score there, one that collapsed with the worst score.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from germline.studies.sweep_space import Dimension, Settings, SweepSpace, rounded
from germline.types import GermlineError

STARTUP = 5
"""Random trials before a model of the scores is fitted."""


class Samplers:
    """The studies of a sweep in a storage of Optuna.

    Args:
        space: what is searched.
        storage: URL of a database, as of SQLAlchemy, such as `sqlite:///study.db`; or
            `journal://FILE` of a journal of Optuna, for folders where SQLite cannot lock.
        name: beginning of the names of the studies, which no other sweep has.
        directions: `maximize` or `minimize` of each objective.
        seed: of random numbers.

    Raises:
        GermlineError: the storage cannot be reached, or Optuna is not installed.
    """

    def __init__(
        self, space: SweepSpace, storage: str, name: str, directions: Sequence[str], seed: int
    ) -> None:
        self._space = space
        self._name = name
        self._directions = [*directions]
        self._seed = seed
        self._url = without_password(storage)
        with self._explained():
            import optuna

            optuna.logging.set_verbosity(optuna.logging.ERROR)
            kind, _, file = storage.partition("://")
            if kind == "journal":
                backend = optuna.storages.journal.JournalFileBackend(file)
                self._storage = optuna.storages.JournalStorage(backend)
            else:
                self._storage = optuna.storages.get_storage(storage)

    def ask(self, sampler: str) -> tuple[int, Settings] | None:
        """Return the number of a new trial of a sampler and its settings; None at a grid's end."""
        with self._explained():
            study = self._study(sampler)
            number = len(study.get_trials(deepcopy=False))
            if sampler == "grid":
                points = self._space.grid()
                np.random.default_rng(self._seed).shuffle(points)  # a part of it covers the space
                if number >= len(points):
                    return None
                return study.ask().number, points[number]
            study.sampler = self._sampler(sampler, number)
            trial = study.ask()
            return trial.number, self._space.settings(lambda one: suggest(trial, one))

    def tell(self, sampler: str, number: int, values: Sequence[float]) -> None:
        """Tell a sampler the objectives of a trial; those of a trial that was told stay."""
        with self._explained():
            self._study(sampler).tell(number, [*values], skip_if_finished=True)

    def _study(self, sampler: str) -> Any:
        import optuna

        return optuna.create_study(
            storage=self._storage,
            study_name=f"{self._name}-{sampler}",
            directions=self._directions,
            load_if_exists=True,
        )

    def _sampler(self, sampler: str, number: int) -> Any:
        """Return the sampler of a trial."""
        from optuna import samplers

        text = f"sweep {self._seed} {sampler} {number}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        options = {"warn_independent_sampling": False, "seed": seed}
        if sampler == "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, group=True)
        if sampler == "gp":
            return samplers.GPSampler(n_startup_trials=STARTUP, **options)
        if sampler == "cmaes":
            return samplers.CmaEsSampler(**options)
        return samplers.RandomSampler(seed=seed)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of Optuna or of its storage into one sentence."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is experimental in Optuna
                yield
        except ImportError as error:
            raise GermlineError(
                f"sweep: {error}: a sweep needs the extra `sweep` (pip install 'germline[sweep]'); "
                "another database than SQLite also needs its driver"
            ) from None
        except GermlineError:
            raise
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise GermlineError(
                f"sweep: the storage {self._url} cannot be used: {said}. Runs are kept: repeat the "
                "command when it can"
            ) from error


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
