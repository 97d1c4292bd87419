"""Compare a journal with the rows of its run: a journal that lost lines rebuilds older weights.

Rows are written before the journal line that commits them, so a killed process leaves at most one
generation with rows and without a line. More of them mean that lines were deleted afterwards.
"""

import json
import logging
from pathlib import Path

from germline.record.atomic_files import complete_lines
from germline.record.run_directory import RunDirectory
from germline.types import GermlineError

log = logging.getLogger(__name__)

ROWS = "generations.jsonl"


def check_journal(run: RunDirectory) -> None:
    """Check that the journal of a run has a line for every generation that was committed.

    Raises:
        GermlineError: lines are missing, so the newest weights cannot be rebuilt.
    """
    if lost := _lost_lines(run):
        last = lost.start - 1
        raise GermlineError(
            f"{_found(run, lost)}, so the newest weights cannot be rebuilt. Restore the journal "
            f"from a copy, train those generations again (germline resume {run.path}), or use the "
            f"weights after generation {last} (germline export {run.path} --generation {last})"
        )


def warn_of_lost_lines(run: RunDirectory) -> None:
    """Warn that a resumed run trains generations again of which the journal lost the lines."""
    if lost := _lost_lines(run):
        log.warning(
            "%s: they are trained again. To have them back without that, stop now (Ctrl-C) and "
            "restore the journal from a copy",
            _found(run, lost),
        )


def _lost_lines(run: RunDirectory) -> range:
    """Return the committed generations that have no line in the journal."""
    # A training process may append to both files: the rows are read first, so that the journal is
    # not behind by more than the one line.
    recorded = _last_recorded_generation(run.path / ROWS)
    last = run.journal.last_generation()
    return range(last + 1, recorded + 1) if recorded > last + 1 else range(0)


def _found(run: RunDirectory, lost: range) -> str:
    last = lost.start - 1
    found = f"ends at generation {last}" if last >= 0 else "has no generation"
    if not run.journal.path.exists():
        found = "does not exist"
    return (
        f"{run.journal.path} {found}, but {ROWS} beside it has rows up to generation {lost[-1]}: "
        f"the journal lines of generations {lost.start} to {lost[-1]} are missing"
    )


def _last_recorded_generation(file: Path) -> int:
    """Return the last generation that has a row, -1 without one; damaged rows are left out."""
    for line in reversed(complete_lines(file)):
        try:
            return int(json.loads(line)["generation"])
        except (ValueError, KeyError, TypeError):
            continue
    return -1
