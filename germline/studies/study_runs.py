"""Run the cells of a study, each in a process of its own, so that its cost is its own.

A run that has ended is left alone, and an interrupted one is continued, so that a study that was
killed goes on where it stopped. A run that fails does not stop the others; the next call continues
it. What `germline train`, `resume` and `eval` print is in `seed-N.log` beside the run.
"""

from collections.abc import Callable
from threading import Lock

from germline.studies.run_processes import RunProcesses
from germline.studies.study_file import Cell, Study
from germline.types import GermlineError


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
        try:
            failure = self._train(cell)
            failure = f"not ended: {failure}" if failure else self._evaluate(cell)
        except GermlineError as error:
            failure = f"not ended: {error}"
        with self._lock:
            self._on_end(cell, failure)

    def _train(self, cell: Cell) -> str:
        return self.train(self._study.config(cell), cell.source, cell.overrides, cell.path)

    def _evaluate(self, cell: Cell) -> str:
        config = self._study.config(cell)
        limit = f"--limit={config.held_out.examples}"
        failure = self.evaluate(config, cell.path, self._study.file.eval, limit)
        return f"evaluation failed: {failure}" if failure else ""
