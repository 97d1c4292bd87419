"""How long a job may take before its engine counts as hung: a multiple of what such jobs took.

Generating takes longer the more rows it has, so the longest time per row is kept beside the longest
time of a whole job. A kind of job that never ended yet has no limit.
"""

from collections import defaultdict

from germline.fleet.worker_jobs import EngineJob, GenerateJob


class HangDetector:
    """Learns from the jobs that ended how long others may take.

    Args:
        factor: a job counts as hung after this multiple of the longest such job; None: never.
        timeout_s: but not before this many seconds.
    """

    def __init__(self, factor: float | None, timeout_s: float) -> None:
        self._factor = factor
        self._timeout_s = timeout_s
        self._longest: defaultdict[type[EngineJob], float] = defaultdict(float)
        self._longest_row: defaultdict[type[EngineJob], float] = defaultdict(float)

    def record(self, job: EngineJob, seconds: float) -> None:
        """Note how long a job took."""
        kind = type(job)
        self._longest[kind] = max(self._longest[kind], seconds)
        self._longest_row[kind] = max(self._longest_row[kind], seconds / _rows(job))

    def limit_s(self, job: EngineJob) -> float | None:
        """Return after how many seconds a job counts as hung; None: never."""
        if self._factor is None or type(job) not in self._longest:
            return None
        return max(self._timeout_s, self._factor * self.expected_s(job))

    def expected_s(self, job: EngineJob) -> float:
        """Return what the slowest such job took, or would have taken with as many rows."""
        kind = type(job)
        return max(self._longest[kind], self._longest_row[kind] * _rows(job))


def _rows(job: EngineJob) -> int:
    return len(job.members) * len(job.examples) if isinstance(job, GenerateJob) else 1
