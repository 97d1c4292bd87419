"""How long is waited for engines: for one that may hang, and for those that are late.

A job counts as hung after a multiple of what such jobs took. A kind of job has no limit until one
has ended. Jobs of a kind may differ in work, so the longest time per unit of work is kept beside
the longest time. The work of texts that are still to be written is the most that it can be: a
healthy engine may write longer texts than all before.

A generation closes when a share of the members is evaluated and `GRACE` times the seconds that this
took have passed since: members that are nearly done are waited for, stragglers are not. A member is
evaluated when all its examples are, an antithetic pair when both its members are; the others are
missing.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from germline.fleet.worker_jobs import (
    ApplyJob,
    EngineJob,
    EpisodesJob,
    GenerateJob,
    LogProbabilitiesQuery,
)
from germline.rollout import Microbatch
from germline.types import Evaluation, MeanUpdate

GRACE = 0.5
"""Once a quorum is evaluated, the others get this share of the time it took, then are missing."""

Place = tuple[int, int]
"""First member and first example of a microbatch."""


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


class Quorum:
    """The members of one evaluation.

    A `share` of them must be evaluated. Members of a `group` (2: an antithetic pair) are evaluated
    or missing together.
    """

    def __init__(
        self,
        microbatches: Sequence[Microbatch],
        members: int,
        share: float,
        group: int,
        clock: Callable[[], float],
    ) -> None:
        self._microbatches = microbatches
        self._members = members
        self._share = share
        self._group = group
        self._clock = clock
        self._start = clock()
        self._reached: float | None = None

    def closing_time(self, done: Collection[Place]) -> float | None:
        """Return when to close, by the clock; None while too few members are evaluated."""
        if self._share == 1:
            return None
        evaluated = self._members - len(self.missing(done))
        if evaluated < self._share * self._members - 1e-9:
            self._reached = None
            return None
        if self._reached is None:
            self._reached = self._clock()
        return self._reached + GRACE * (self._reached - self._start)

    def is_closed(self, done: Collection[Place]) -> bool:
        """Whether the closing time has come."""
        end = self.closing_time(done)
        return end is not None and self._clock() >= end

    def missing(self, done: Collection[Place]) -> set[int]:
        """Return the members that are not evaluated, or whose pair is not."""
        groups = {
            member // self._group
            for microbatch in self._microbatches
            if (microbatch.first_member, microbatch.first_example) not in done
            for member in range(
                microbatch.first_member, microbatch.first_member + len(microbatch.members)
            )
        }
        return {member for member in range(self._members) if member // self._group in groups}

    def without_missing(self, evaluation: Evaluation, done: Collection[Place]) -> Evaluation:
        """Remove the rewards (NaN) and rollouts of missing members."""
        missing = self.missing(done)
        if not missing:
            return evaluation
        rewards = evaluation.rewards.copy()
        rewards[sorted(missing)] = float("nan")
        rollouts = tuple(
            rollout for rollout in evaluation.rollouts if rollout.member not in missing
        )
        return replace(evaluation, rewards=rewards, rollouts=rollouts)
