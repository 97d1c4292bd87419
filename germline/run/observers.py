"""What follows a training: warnings and snapshots.

A training calls its observers in a fixed order. All of them see `on_generation` once a generation
is committed; where it was scored, all of them then see `on_held_out`. TensorBoard and W&B are
observers as well (`trackers`).
"""

import logging
import re
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from germline.checkpoint import drop_snapshots
from germline.errors import count_of
from germline.fleet import Fleet
from germline.record import RunDirectory
from germline.record.early_stopping import best_score
from germline.report.findings import (
    MANY_FAILED,
    WINDOW,
    Finding,
    Recorded,
    find_in_rows,
    find_in_scores,
)
from germline.report.html_page import write_report
from germline.types import GenerationRecord, HeldOutScore, Rollout

log = logging.getLogger(__name__)


class Observer:
    """Follows a training; every method does nothing unless a subclass overrides it."""

    def on_generation(self, record: GenerationRecord) -> None:
        """See a generation, which is committed."""

    def on_held_out(self, score: HeldOutScore, rollouts: Sequence[Rollout] | None = None) -> None:
        """See a held-out score.

        Args:
            score: of the weights after `score.generation` updates.
            rollouts: its completions, at the start and the end of a run; None where the score is
                part of the record of a generation.
        """

    def on_stop(self) -> None:
        """See that no generation follows, while the engines are still loaded; perhaps twice."""

    def close(self) -> None:
        """Release what it holds, also after an error."""


class FindingLog(Observer):
    """Logs each warning of a training once."""

    def __init__(self, directory: RunDirectory) -> None:
        self.findings: list[Finding] = []
        self._directory = directory
        self._latest = Recorded(directory.config, directory.generations()[-WINDOW:])
        self._logged: set[str] = set()
        self._read_scores()

    def on_generation(self, record: GenerationRecord) -> None:
        """Log new findings."""
        rows = [*self._latest.rows, self._directory.last_row][-WINDOW:]
        self._latest = replace(self._latest, rows=rows)
        self._log(count_of(record.generation + 1, "generations"))

    def _read_scores(self) -> None:
        scores = [row.score for row in self._directory.held_out()]
        self._latest = replace(self._latest, scores=scores)
        self._of_scores = find_in_scores(self._latest)

    def _log(self, after: str) -> None:
        found = self._of_scores + find_in_rows(self._latest)
        self.findings = [one for one in found if one.level == "warning"]
        for finding in self.findings:
            if finding.code not in self._logged:
                log.warning("after %s: %s", after, finding.sentence)
                self._logged.add(finding.code)

    def on_held_out(self, score: HeldOutScore, rollouts: Sequence[Rollout] | None = None) -> None:
        """Log new findings, and that many completions could not be graded."""
        after = count_of(score.generation, "updates")
        self._read_scores()
        self._log(after)
        reasons = Counter(one.grade.failure for one in rollouts or () if one.grade.failure)
        failed = sum(reasons.values())
        if rollouts and failed > MANY_FAILED * len(rollouts):
            log.warning(
                "after %s, the grading of %d of %d held-out completions failed, most often "
                "by: %s; the held-out score says little of the model before this is mended",
                *(after, failed, len(rollouts), reasons.most_common(1)[0][0]),
            )


class Snapshots(Observer):
    """Writes snapshots, which only save replaying the journal: no digest depends on them.

    One is written every `record.snapshot_every` generations and after the last one. Where only
    snapshots hold the weights, that before the best held-out score is written at once, and kept.
    """

    def __init__(self, directory: RunDirectory, fleet: Fleet) -> None:
        self._directory = directory
        self._fleet = fleet
        self._every = directory.config.record.snapshot_every
        # Gradients cannot be replayed, so a run that follows them is resumed from a snapshot.
        fewest = 0 if directory.config.method.replayable else 1
        self._keep = max(fewest, directory.config.record.keep_snapshots)
        self._unsaved: int | None = None

    def on_generation(self, record: GenerationRecord) -> None:
        """Write a snapshot if one is due, and after the last generation."""
        done = record.generation + 1
        self._unsaved = record.generation
        if done == record.generations or done % self._every == 0:
            self._write()

    def on_held_out(self, score: HeldOutScore, rollouts: Sequence[Rollout] | None = None) -> None:
        """Write a snapshot of the best weights so far, if they have none."""
        if self._best() == score.generation - 1:
            self._write()

    def on_stop(self) -> None:
        """Write a snapshot of the last generation, if it has none."""
        self._write()

    def _best(self) -> int | None:
        """Return the generation before the best score, where only a snapshot can restore it."""
        if self._directory.config.method.replayable:
            return None
        best = best_score([row.score for row in self._directory.held_out()])
        return best.generation - 1 if best else None

    def _write(self) -> None:
        if self._unsaved is not None and self._keep:
            folder = self._directory.snapshots
            self._fleet.save_snapshot(folder, self._unsaved)
            drop_snapshots(folder, self._unsaved, self._keep, self._best())
            self._unsaved = None


def draw_evolution(directory: RunDirectory) -> None:
    """Draw `evolution.png`; importing matplotlib, 0.35 s, does not delay the first generation."""
    from germline.report import plots

    plots.draw_evolution(directory)


def write_pages(directory: RunDirectory) -> None:
    """Write the figure and the report of a run that has ended."""
    draw_evolution(directory)
    write_report(directory.path)


def peak_memory_mb() -> dict[str, float]:
    """Return the peak memory since the process began, in MB of 10^6 bytes.

    `host` is resident memory, including the loading of the model. `device` is the memory that
    torch allocated on the current accelerator; the key is missing if nothing was allocated. Other
    processes (graders, further engines) are not counted.
    """
    import torch

    peaks = {"host": _host_bytes() / 1e6}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        peaks["device"] = torch.cuda.max_memory_allocated() / 1e6
    return peaks


def _host_bytes() -> int:
    # On Linux a new program inherits getrusage's peak from its parent; VmHWM is its own peak.
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
