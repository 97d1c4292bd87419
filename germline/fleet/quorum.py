"""When a generation closes whose stragglers are not waited for.

It closes when a share of the members is evaluated and `GRACE` times the seconds that this took have
passed since: members that are nearly done are waited for, stragglers are not. A member is evaluated
when all its examples are, an antithetic pair when both its members are; the others are missing.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from germline.rollout import Microbatch
from germline.types import Evaluation

GRACE = 0.5
"""Once a quorum is evaluated, the others get this share of the time it took, then are missing."""

Place = tuple[int, int]
"""First member and first example of a microbatch."""


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
