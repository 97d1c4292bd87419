"""Rollouts that runs share: those of the same weights, members, prompts and noise, as files.

Before their first update, runs that differ only in the update rule (learning rate, shaping,
optimizer) or in their length generate the same. With `record.shared` the first such run keeps what
it generated, and the others read that instead of generating it. Their journals and budgets are
those of runs that generate everything. What cannot be read is generated again.
"""

import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.protocols import Fleet
from germline.record.atomic_files import write_atomically
from germline.run.budget_meter import CountingFleet
from germline.types import Evaluation, MeanUpdate, Update, UpdateSize

EVALUATES = {"model", "task", "space", "engine", "microbatch", "prompt_search"}
"""Sections that decide an evaluation, beside what it is asked for."""


class SharingFleet(CountingFleet):
    """Counts like its base class, and `shared_rollouts` that were read, until the first update.

    Args:
        inner: the fleet.
        config: of the run; `record.shared` is the folder.
    """

    def __init__(self, inner: Fleet, config: Config) -> None:
        super().__init__(inner)
        self._folder = Path(config.record.shared or "")
        self._is_start = True
        sections = config.model_dump(mode="json", include=EVALUATES)
        self._of_run = json.dumps([inner.digest(), config.search.unit, sections], sort_keys=True)

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply an update, after which nothing is shared."""
        self._is_start = False
        return self.inner.apply(update)

    def _counted(self, evaluate: Callable[..., Evaluation], *asked: Any) -> Evaluation:
        """Read or generate an evaluation; one by graders of another task (`retained`) is made."""
        is_own = len(asked) < 4 or asked[3] is None
        shared = partial(self._read_or, evaluate)
        return super()._counted(shared if is_own and self._is_start else evaluate, *asked)

    def _read_or(self, evaluate: Callable[..., Evaluation], *asked: Any) -> Evaluation:
        key = hashlib.sha256(self._of_run.encode() + pickle.dumps(asked)).hexdigest()
        file = self._folder / f"{key}.pickle"
        try:
            found: Evaluation = pickle.loads(file.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):  # not there, or damaged
            found = evaluate(*asked)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, pickle.dumps(found))
            return found
        self.counts["shared_rollouts"] += len(found.rollouts)
        return replace(found, decode_seconds=0.0)
