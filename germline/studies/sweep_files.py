"""The files of a sweep: their names, and how they are read.

OUT/sweep.json              config, overrides, space, sampler, objectives, budget, rungs, seeds
OUT/trials/0007/trial.json  settings and state of a trial
OUT/trials/0007/seed-0/     a run of the trial, one for each run seed, also of tests
OUT/shared/                 rollouts that trials have in common, until the sweep ends
OUT/best.json               method and settings of the best trial, and what the search has spent
"""

import json
from pathlib import Path
from typing import Any

from germline.types import GermlineError

SWEEP_FILE, TRIAL_FILE, BEST_FILE = "sweep.json", "trial.json", "best.json"
TRIALS, SHARED = "trials", "shared"


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON file of a sweep."""
    try:
        return dict(json.loads(file.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        raise GermlineError(f"{file.parent} holds no sweep: there is no {file.name}") from None
    except (OSError, ValueError, TypeError) as error:
        raise GermlineError(f"{file} is damaged ({error}); restore it from a copy") from None


def read_best(sweep: Path) -> dict[str, Any]:
    """Return the best trial of a sweep that has ended: `number`, `overrides`, `spent`, `seeds`."""
    seeds = read_json(sweep / SWEEP_FILE).get("seeds", ())
    if not (sweep / BEST_FILE).exists():
        raise GermlineError(f"{sweep}: this sweep has not ended: repeat its command")
    return read_json(sweep / BEST_FILE) | {"seeds": seeds}
