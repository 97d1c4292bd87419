"""A run directory without a generation, left by a run that was refused or killed at its start.

A new run may take its place: what its files say, the same command computes again.
"""

import logging
import shutil
from pathlib import Path

from germline.record.lock import is_locked

log = logging.getLogger(__name__)

_WRITTEN_BEFORE = {
    "run.json",
    "held_out.jsonl",
    "generations.jsonl",
    "rollouts.jsonl",
    "journal.jsonl",
    "graders.log",
    "tensorboard",
    "ancestors",
}
"""What a run writes before its first generation is committed."""


def is_unbegun(path: Path) -> bool:
    """Return whether a folder holds a run without a generation, on which nobody works, and no more.

    A journal with any byte counts as begun, even if its only line is not complete.
    """
    journal = path / "journal.jsonl"
    if not (path / "run.json").is_file() or (journal.exists() and journal.stat().st_size):
        return False
    names = {file.name for file in path.iterdir() if not file.name.startswith(".")}
    return names <= _WRITTEN_BEFORE and not is_locked(path)


def clear_unbegun(path: Path) -> None:
    """Delete the files of a run without a generation; do nothing in any other folder."""
    if not is_unbegun(path):
        return
    log.warning("out: %s holds a run without any generation; that run is begun anew", path)
    for name in _WRITTEN_BEFORE:
        file = path / name
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)
