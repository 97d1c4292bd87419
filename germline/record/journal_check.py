"""Compare a journal with the rows of its run: a journal that lost lines rebuilds older weights.

Rows are written before the journal line that commits them, so a killed process leaves at most one
generation with rows and without a line. More of them mean that lines were deleted afterwards.
"""

import json
from pathlib import Path

from germline.record.atomic_files import complete_lines
from germline.record.run_directory import RunDirectory
from germline.types import GermlineError


def check_journal(run: RunDirectory) -> None:
    """Check that the journal of a run has a line for every generation that was committed.

    Raises:
        GermlineError: lines are missing, so the newest weights cannot be rebuilt.
    """
    file = run.path / "generations.jsonl"
    # A training process may append to both files: the rows are read first, so that the journal is
    # not behind by more than the one line.
    recorded = _last_recorded_generation(file)
    last = run.journal.last_generation()
    if recorded <= last + 1:
        return
    found = f"ends at generation {last}" if last >= 0 else "has no generation"
    if not run.journal.path.exists():
        found = "does not exist"
    raise GermlineError(
        f"{run.journal.path} {found}, but {file.name} beside it has rows up to generation "
        f"{recorded}: the journal lines of generations {last + 1} to {recorded} are missing, so "
        "the newest weights cannot be rebuilt. Restore the journal from a copy, train those "
        f"generations again (germline resume {run.path}), or use the weights after generation "
        f"{last} (germline replay {run.path} --generation {last})"
    )


def _last_recorded_generation(file: Path) -> int:
    """Return the last generation that has a row, -1 without one; damaged rows are left out."""
    for line in reversed(complete_lines(file)):
        try:
            return int(json.loads(line)["generation"])
        except (ValueError, KeyError, TypeError):
            continue
    return -1
