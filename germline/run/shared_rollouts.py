"""Rollouts that runs share: those of the same weights, members, prompts and noise, as files.

Before their first update, runs that differ only in the update rule (learning rate, shaping,
optimizer) or in their length generate the same. With `record.shared` the first such run keeps what
it generated, and the others read that instead of generating it. Their journals and budgets are
those of runs that generate everything. What cannot be read is generated again. Nothing is kept in
which a reward is missing, as the next run may have it.
"""

import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from germline.fleet import Fleet
from germline.record import RunDirectory
from germline.record.atomic_files import write_atomically
from germline.run.kept_divergences import machine_and_code
from germline.types import Evaluation

EVALUATES = {"model", "task", "space", "engine", "microbatch", "prompt_search"}
"""Sections that decide an evaluation, beside the machine, the code and what it is asked for."""


class SharedRollouts:
    """The evaluations of a folder, for `Fleet.shared` of a run before its first update."""

    def __init__(self, fleet: Fleet, directory: RunDirectory) -> None:
        config = directory.config
        self._folder = Path(config.record.shared or "")
        self._counts = fleet.counts
        facts = [
            *(fleet.digest(), config.search.unit, *machine_and_code(directory)),
            config.model_dump(mode="json", include=EVALUATES),
        ]
        self._of_run = json.dumps(facts, sort_keys=True)

    def __call__(self, make: Callable[[], Evaluation], asked: object) -> Evaluation:
        """Read an evaluation, and count `shared_rollouts`; or make it and keep it."""
        key = hashlib.sha256(self._of_run.encode() + pickle.dumps(asked)).hexdigest()
        file = self._folder / f"{key}.pickle"
        try:
            found: Evaluation = pickle.loads(file.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):  # not there, or damaged
            found = make()
            if not np.isnan(found.rewards).any():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, pickle.dumps(found))
            return found
        self._counts["shared_rollouts"] += len(found.rollouts)
        return replace(found, decode_seconds=0.0)
