"""A term of the reward that falls with the KL divergence of members from the start model.

For a token y_t that a member with the distribution p wrote, and the start model q,

    d_t = log q(y_t | y_<t) - log p(y_t | y_<t)
    k1  = -d_t                              unbiased where tokens are samples of p
    k3  = exp(d_t) - d_t - 1                likewise, never negative, and of less variance

(Schulman 2020, "Approximating KL divergence"), in nats, at temperature 1. The mean over the tokens
of a completion, or their sum, is the rubric part `kl`, and its weight is -`task.kl_coef`. Greedy
completions are no samples of p: on them the part is a distance along the text and no estimate of
the divergence.

Cost: the start model is in memory beside the engines, and each completion is read twice more, by
the member and by the start model. All of this is done by one engine and in this process, whatever
the number of engines, so it does not depend on that number.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from germline.config.tasks import KL_PART, TaskBase
from germline.fleet import Fleet
from germline.fleet.worker_jobs import LogProbabilitiesQuery
from germline.methods.reward_term import RewardTerm, replace_grades
from germline.protocols import Engine, Members
from germline.types import Evaluation, Example, Grade, Rollout


class KlPenaltyTerm(RewardTerm):
    """Adds the part `kl` to every grade, and the penalty to every reward.

    Args:
        start: an engine whose center is the start model.
        settings: coefficient and estimator.
    """

    def __init__(self, start: Engine, settings: TaskBase) -> None:
        self._start = start
        self._settings = settings

    def grade(
        self, fleet: Fleet, members: Members, examples: Sequence[Example], evaluation: Evaluation
    ) -> Evaluation:
        """Penalize the distance of every member from the start model."""
        written = {(one.member, one.example): one for one in evaluation.rollouts}
        different = list({example.index: example for example in examples}.values())
        divergences = self._divergences(fleet, members, different, written)

        def grade(rollout: Rollout) -> Grade:
            kl = divergences.get((rollout.member, rollout.example), math.nan)
            return self._grade(rollout.grade, kl)

        return replace_grades(evaluation, examples, grade)

    def close(self) -> None:
        """Close the start model."""
        self._start.close()

    def _divergences(
        self,
        fleet: Fleet,
        members: Members,
        examples: Sequence[Example],
        written: Mapping[tuple[int, int], Rollout],
    ) -> dict[tuple[int, int], float]:
        """Return the part of each completion of the members of which none is missing."""
        complete = [
            member
            for member in range(len(members))
            if all((member, example.index) in written for example in examples)
        ]
        if not complete:
            return {}
        completions = [
            [written[member, example.index].completion for example in examples]
            for member in complete
        ]
        asked = [members[member] for member in complete]
        ours = fleet.query(LogProbabilitiesQuery(asked, examples, completions))
        theirs = self._start.log_probabilities([None] * len(asked), examples, completions)
        return {
            (member, example.index): divergence(p, q, self._settings)
            for member, own, start in zip(complete, ours, theirs, strict=True)
            for example, p, q in zip(examples, own, start, strict=True)
        }

    def _grade(self, grade: Grade, kl: float) -> Grade:
        coefficient, failure = self._settings.kl_coef, grade.failure
        reward = grade.reward - coefficient * kl if coefficient else grade.reward
        if not math.isfinite(kl):
            kl, reward = math.nan, math.nan if coefficient else reward
            reason = f"{KL_PART}: the divergence from the start model is not known"
            failure = reason if failure is None else f"{failure}; {reason}"
        return Grade(reward, {**grade.parts, KL_PART: kl}, failure)


def divergence(member: Sequence[float], start: Sequence[float], settings: TaskBase) -> float:
    """Estimate the divergence of a completion from the log-probabilities of its tokens."""
    d = np.asarray(start, dtype=np.float64) - np.asarray(member, dtype=np.float64)
    if not d.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        values = -d if settings.kl_estimator == "k1" else np.expm1(d) - d
    return float(values.mean() if settings.kl_per == "token" else values.sum())
