"""Which members are in, and when a generation may close without the others.

It closes when a share of the members is in and the others have had `GRACE` of the time that took:
what is nearly done is waited for, what hangs behind is not. A member is in with all its examples,
and an antithetic pair with both its members.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from germline.rollout import Microbatch
from germline.types import Evaluation

GRACE = 0.5
"""Once a quorum is in, the others have so much of the time it took before they are left out."""

Place = tuple[int, int]
"""First member and first example of a microbatch."""


class Quorum:
    """The members of one evaluation.

    Args:
        microbatches: everything there is to play.
        members: how many there are.
        share: of the members that will do.
        together: members in groups of so many are in together or not at all.
        clock: in seconds.
    """

    def __init__(
        self,
        microbatches: Sequence[Microbatch],
        members: int,
        share: float,
        together: int,
        clock: Callable[[], float],
    ) -> None:
        self._cells = microbatches
        self._members = members
        self._share = share
        self._together = together
        self._clock = clock
        self._begun = clock()
        self._reached: float | None = None

    def can_close(self, played: Collection[Place]) -> float | None:
        """Return when to close, by the clock; None while too few members are in."""
        if self._share == 1:
            return None
        in_time = self._members - len(self.missing(played))
        if in_time < self._share * self._members - 1e-9:
            self._reached = None
            return None
        if self._reached is None:
            self._reached = self._clock()
        return self._reached + GRACE * (self._reached - self._begun)

    def is_closed(self, played: Collection[Place]) -> bool:
        """Whether nobody else is waited for."""
        end = self.can_close(played)
        return end is not None and self._clock() >= end

    def missing(self, played: Collection[Place]) -> set[int]:
        """Return the members that are not in."""
        groups = {
            member // self._together
            for one in self._cells
            if (one.first_member, one.first_example) not in played
            for member in range(one.first_member, one.first_member + len(one.members))
        }
        return {member for member in range(self._members) if member // self._together in groups}

    def of(self, evaluation: Evaluation, played: Collection[Place]) -> Evaluation:
        """Leave out what members played that are not in."""
        missing = self.missing(played)
        if not missing:
            return evaluation
        rewards = evaluation.rewards.copy()
        rewards[sorted(missing)] = float("nan")
        rollouts = tuple(one for one in evaluation.rollouts if one.member not in missing)
        return replace(evaluation, rewards=rewards, rollouts=rollouts)
