"""Run the cells of a study, each in a process of its own, so that its cost is its own.

A run that has ended is left alone, and an interrupted one is continued, so that a study that was
killed goes on where it stopped. A run that fails does not stop the others; the next call continues
it. What `germline train`, `resume` and `eval` print is in `seed-N.log` beside the run.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from germline.record import RunDirectory
from germline.record.atomic_files import write_json
from germline.studies.run_seeds import overrides_to_resume
from germline.studies.study_file import Cell, Study
from germline.types import GermlineError

STOPPED = "stopped"
"""The failure of a run that was interrupted with the study."""

EVALUATION_FAILED = "evaluation failed"
"""The beginning of a failure of a run that has ended."""

INTERRUPTED = 130
"""Exit status of `germline train` that was interrupted after a generation."""


class StudyRunner:
    """Runs what is missing of a study.

    Args:
        study: the study.
        jobs: number of runs at the same time.
        on_end: sees every cell as it ends, one after another, and why it failed (else empty).

    Attributes:
        not_begun: number of cells that `stop` kept from being begun.
    """

    def __init__(self, study: Study, jobs: int, on_end: Callable[[Cell, str], object]) -> None:
        self._study = study
        self._jobs = jobs
        self._on_end = on_end
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self.is_stopping = False
        self.not_begun = 0

    def run(self) -> None:
        """Run, continue and evaluate the cells."""
        self._study.prepare()
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(self._finish, self._study.cells))

    def stop(self) -> None:
        """Let the runs finish their generation; no further run is begun."""
        self.is_stopping = True
        for process in [*self._processes]:
            process.send_signal(signal.SIGINT)

    def _finish(self, cell: Cell) -> None:
        failure = ""
        try:
            if not self.is_stopping:
                failure = self._train(cell) or self._evaluate(cell)
            elif not (cell.path / "run.json").exists():
                with self._lock:
                    self.not_begun += 1
                return
            elif not RunDirectory.open(cell.path).has_ended:
                failure = STOPPED
        except GermlineError as error:
            failure = str(error)
        with self._lock:
            self._on_end(cell, failure)

    def _train(self, cell: Cell) -> str:
        if not (cell.path / "run.json").exists():
            seed, out = f"seed={cell.seed}", str(cell.path)
            return self._run(cell, "train", cell.source, *cell.overrides, seed, "--out", out)[1]
        overrides = overrides_to_resume(self._study.config(cell), cell.path)
        if overrides is None:
            return ""
        return self._run(cell, "resume", str(cell.path), *overrides)[1]

    def _evaluate(self, cell: Cell) -> str:
        options = self._study.file.eval
        updates = RunDirectory.open(cell.path).journal.last_generation() + 1
        facts: dict[str, Any] = {"updates": updates, "options": list(options)}
        if not options or facts.items() <= evaluation_of(cell.path).items():
            return ""
        limit = f"--limit={self._study.config(cell).held_out.examples}"
        found: dict[str, Any] = {}
        for one in options:
            printed, failure = self._run(cell, "eval", str(cell.path), limit, *one.split())
            if failure:
                return f"{EVALUATION_FAILED}: {failure}"
            found |= json.loads(printed)[0]
        write_json(_evaluation_file(cell.path), {**facts, "result": found})
        return ""

    def _run(self, cell: Cell, *arguments: str) -> tuple[str, str]:
        """Run a command; return what it printed, and why it failed."""
        threads = getattr(self._study.config(cell).engine, "threads", None)
        limited = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        with cell.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "germline", *arguments, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | limited,
                start_new_session=True,  # `stop` passes an interrupt on, once
            )
            self._processes.add(process)
            printed = process.communicate()[0]
            self._processes.remove(process)
            log.write(printed)
        return printed.decode(errors="replace"), _failure(cell, printed, process.returncode)


def evaluation_of(run: Path) -> dict[str, Any]:
    """Return what `germline eval` said of a run, and of which weights; empty if it was not run."""
    file = _evaluation_file(run)
    return dict(json.loads(file.read_bytes())) if file.exists() else {}


def _evaluation_file(run: Path) -> Path:
    return run.with_name(f"{run.name}-eval.json")


def _failure(cell: Cell, printed: bytes, status: int) -> str:
    """Return the error that a command printed, else the end of its log; empty without one."""
    if status == 0:
        return ""
    if status == INTERRUPTED:
        return STOPPED
    if status < 0:  # the log ends with an unrelated line
        return f"killed by signal {-status} ({cell.log})"
    try:
        return str(json.loads(printed)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        lines = cell.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"exit status {status}: {lines[-1] if lines else 'nothing printed'} ({cell.log})"
