"""Commands of germline in processes of their own, so that the cost of a run is its own.

What a command prints is appended to a log file beside its run, `seed-N.log`. A run that has ended
is left alone, and an interrupted one is continued, so that a study that was killed goes on where it
stopped. A run that fails does not stop the others; the next call continues it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from germline.config import Config
from germline.record import RunDirectory
from germline.record.atomic_files import read_json, write_json
from germline.studies.run_seeds import overrides_to_resume
from germline.studies.study_file import Cell, Study
from germline.types import GermlineError

STOPPED = "stopped"
"""The failure of a run that was interrupted with its study."""

INTERRUPTED = 130
"""Exit status of `germline train` that was interrupted after a generation."""


class RunProcesses:
    """The processes of a study: begins and continues runs, evaluates them, and stops.

    Attributes:
        is_stopping: whether `stop` was called, so that no further command is begun.
    """

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[bytes]] = set()
        self.is_stopping = False

    def stop(self) -> None:
        """Let runs finish their generation; a second call ends them at once."""
        self.is_stopping = True
        for process in [*self._processes]:
            process.send_signal(signal.SIGINT)

    def in_threads(self, work: Callable[[Any], object], items: Iterable[Any], jobs: int) -> None:
        """Do the work of every item, `jobs` at a time; an error stops all, and is raised."""

        def work_or_stop(item: Any) -> None:
            try:
                work(item)
            except BaseException:
                self.stop()
                raise

        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(work_or_stop, items))
            except BaseException:  # of this thread: Ctrl-C
                self.stop()
                raise

    def train(self, planned: Config, source: str, overrides: Sequence[str], path: Path) -> str:
        """Begin a run, or continue it to the end of the planned config; return why it failed.

        Args:
            planned: the config with the run seed, which `source` and `overrides` give.
            source: name of the config.
            overrides: of the config, without the run seed.
            path: the run directory.
        """
        if not (path / "run.json").exists():
            seed, out = f"seed={planned.seed}", str(path)
            return self.run(planned, path, "train", source, *overrides, seed, "--out", out)[1]
        changes = overrides_to_resume(planned, path)
        return "" if changes is None else self.run(planned, path, "resume", str(path), *changes)[1]

    def evaluate(self, planned: Config, path: Path, options: Sequence[str], *words: str) -> str:
        """Evaluate the last weights of a run with `germline eval`; return why it failed.

        Each of `options` is a call; `words` are added to all. The results together are what
        `evaluation_of` returns; those of the same weights and options are kept.
        """
        updates = RunDirectory.open(path).journal.last_generation() + 1
        facts: dict[str, Any] = {"updates": updates, "options": list(options)}
        if not options or facts.items() <= evaluation_of(path).items():
            return ""
        found: dict[str, Any] = {}
        for one in options:
            printed, failure = self.run(planned, path, "eval", str(path), *words, *one.split())
            if failure:
                return failure
            found |= json.loads(printed)[0]
        write_json(_evaluation_file(path), {**facts, "result": found})
        return ""

    def run(self, planned: Config, path: Path, *arguments: str) -> tuple[str, str]:
        """Run a command on a run directory; return what it printed, and why it failed."""
        if self.is_stopping:
            return "", STOPPED
        threads = getattr(planned.engine, "threads", None)
        limited = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        with log_of(path).open("ab") as log:
            ends_with_study, held = os.pipe()
            process = subprocess.Popen(
                [sys.executable, "-m", "germline.cli.study_command", *arguments, "--json"],
                stdin=ends_with_study,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | limited,
                start_new_session=True,  # `stop` passes an interrupt on, once
            )
            os.close(ends_with_study)
            self._processes.add(process)
            printed = process.communicate()[0]
            os.close(held)
            self._processes.remove(process)
            log.write(printed)
        failure = failure_of(path, printed, process.returncode)
        return printed.decode(errors="replace"), self._failure(failure)

    def _failure(self, failure: str) -> str:
        """Return a failure; an interrupt at its start ends a process by the signal."""
        return STOPPED if failure and self.is_stopping else failure


class StudyRunner(RunProcesses):
    """Runs what is missing of a study.

    Args:
        study: the study.
        jobs: number of runs at the same time.
        on_end: sees every cell as it ends, one after another, and why it failed (else empty).
    """

    def __init__(self, study: Study, jobs: int, on_end: Callable[[Cell, str], object]) -> None:
        super().__init__()
        self._study = study
        self._jobs = jobs
        self._on_end = on_end
        self._lock = Lock()

    def run_cells(self) -> None:
        """Run, continue and evaluate the cells."""
        self._study.prepare()
        self.in_threads(self._finish, self._study.cells, self._jobs)

    def _finish(self, cell: Cell) -> None:
        if self.is_stopping:
            return
        config, failed = self._study.config(cell), "not ended"
        try:
            failure = self.train(config, cell.source, cell.overrides, cell.path)
            if not failure:
                failed, limit = "evaluation failed", f"--limit={config.held_out.examples}"
                failure = self.evaluate(config, cell.path, self._study.file.eval, limit)
        except GermlineError as error:
            failure = str(error)
        with self._lock:
            self._on_end(cell, f"{failed}: {failure}" if failure else "")


def log_of(path: Path) -> Path:
    """Return the file of what the commands of a run print."""
    return path.with_name(f"{path.name}.log")


def evaluation_of(run: Path) -> dict[str, Any]:
    """Return what `germline eval` said of a run, and of which weights; empty if it was not run."""
    file = _evaluation_file(run)
    return read_json(file) if file.exists() else {}


def failure_of(path: Path, printed: bytes, status: int) -> str:
    """Return the error that a command printed, else the end of its log; empty without one."""
    log = log_of(path)
    if status == 0:
        return ""
    if status == INTERRUPTED:
        return STOPPED
    if status < 0:  # the log ends with an unrelated line
        return f"killed by signal {-status} ({log})"
    try:
        return str(json.loads(printed)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"exit status {status}: {lines[-1] if lines else 'nothing printed'} ({log})"


def _evaluation_file(run: Path) -> Path:
    return run.with_name(f"{run.name}-eval.json")
