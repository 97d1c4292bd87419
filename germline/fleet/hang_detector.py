"""How long a job may take before its engine counts as hung: a multiple of what such jobs took.

A kind of job has no limit until one has ended. Jobs of a kind may differ in work, so the longest
time per unit of work is kept beside the longest time. The work of texts that are still to be
written is the most that it can be: a healthy engine may write longer texts than all before.
"""

from collections import defaultdict
from typing import Any

from germline.fleet.engine_queries import LogProbabilitiesQuery
from germline.fleet.worker_jobs import ApplyJob, EngineJob, EpisodesJob, GenerateJob
from germline.types import MeanUpdate


class HangDetector:
    """Learns from the jobs that ended how long others may take.

    A job counts as hung after `factor` times the longest such job (None: never), and not before
    `timeout_s`.
    """

    def __init__(self, factor: float | None, timeout_s: float) -> None:
        self._factor = factor
        self._timeout_s = timeout_s
        self._longest: defaultdict[type, float] = defaultdict(float)
        self._longest_unit: defaultdict[type, float] = defaultdict(float)

    def record(self, job: EngineJob, seconds: float, result: Any = None) -> None:
        """Note how long a job took that returned this result."""
        if work := _work(job, result):
            kind = type(job)
            self._longest[kind] = max(self._longest[kind], seconds)
            self._longest_unit[kind] = max(self._longest_unit[kind], seconds / work)

    def limit_s(self, job: EngineJob) -> float | None:
        """Return after how many seconds a job counts as hung; None: never."""
        if self._factor is None or type(job) not in self._longest:
            return None
        return max(self._timeout_s, self._factor * self.expected_s(job))

    def expected_s(self, job: EngineJob) -> float:
        """Return what the slowest such job took, or would have taken with as much work."""
        kind = type(job)
        return max(self._longest[kind], self._longest_unit[kind] * _work(job))


def _work(job: EngineJob, result: Any = None) -> int:
    """Return the work of a job, in units of its kind; without its result, the most it can be.

    0: the job says nothing about how long others take.
    """
    if isinstance(job, ApplyJob):
        update = job.update
        if isinstance(update, MeanUpdate):
            return 1
        return 0 if update.skipped else sum(map(bool, update.coefficients))
    if isinstance(job, LogProbabilitiesQuery):
        texts = [text for row in job.completions for text in row]
        prompts = len(job.members) * sum(len(example.prompt) for example in job.examples)
        return max(1, prompts + sum(len(text.tokens) for text in texts))
    if isinstance(job, GenerateJob):
        written = [len(text.tokens) for row in result or () for text in row]
        longest = job.decoding.max_new_tokens
    elif isinstance(job, EpisodesJob):
        written = [len(episode.completion.tokens) for row in result or () for episode in row]
        longest = job.max_turns * job.decoding.max_new_tokens
    else:
        return 1
    return len(job.members) * len(job.examples) * max(1, *(written or [longest]))
