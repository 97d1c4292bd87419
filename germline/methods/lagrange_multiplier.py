"""The weight of a cost that adapts to the center: reward minus lambda times cost.

With the reward R_ij of member i on example j (the weighted sum of all rubric parts but the cost),
its cost C_ij, and the mean cost C_0 of the center on the batch of the generation,

    (1)  r_ij   = R_ij - lambda C_ij           so fitness = mean_j R_ij - lambda mean_j C_ij
    (2)  e      = max(0, C_0 - cost_limit)
    (3)  a      <- cost_ema a + (1 - cost_ema) e        a = e after the first generation
    (4)  lambda <- lambda exp(lambda_lr a)              cut to [lambda_min, lambda_max]

Lambda starts at minus the weight of the cost, and (4) gives the lambda of the next generation. With
`safe_first`, (1) has the lowest R of all members on the same example in the place of R_ij where
C_ij > safe_first: a completion of a higher cost cannot gain by its reward.

Source: the Lagrangian method of Safe RLHF (Dai et al. 2024, arXiv 2310.12773), whose constraint is
E[C] + d <= 0: cost_limit is -d. Deviations: the excess (2) is at least 0, so lambda never falls; it
is averaged before it acts; and rewards are not divided by 1 + lambda: most shapings do not depend
on their scale.

Limits: the cost of the center is that of one batch. Held-out scores and `germline eval` weigh the
cost by its first lambda, so that they can be compared over a run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from germline.config.row_tasks import SafeAlignment
from germline.config.schedules import scale_within
from germline.methods.reward_term import RewardTerm, replace_grades
from germline.strategies.adaptive_values import AdaptiveValue
from germline.types import Evaluation, Example, Grade, MeanUpdate, Rollout, Update

LAMBDA, CENTER_COST = "lambda", "center_cost"
"""Names of the values in the strategy state, and in generations.jsonl."""


class Multiplier(NamedTuple):
    """Lambda, and the running mean of the excess cost; None before the first generation."""

    value: float
    mean_excess: float | None = None


class LagrangeTerm(RewardTerm):
    """Weighs a cost by a multiplier that adapts.

    Args:
        settings: of the task.
        weights: of all rubric parts.
    """

    def __init__(self, settings: SafeAlignment, weights: Mapping[str, float]) -> None:
        self.settings = settings
        self.needs_center = settings.lambda_lr > 0
        self._weights = {
            name: weight for name, weight in weights.items() if weight and name != settings.cost
        }
        self._multiplier = AdaptiveValue("lambda", Multiplier(-weights[settings.cost]))
        self._center_cost: float | None = None

    def weigh(
        self,
        generation: int,
        batch: Sequence[Example],
        evaluation: Evaluation,
        center: Evaluation | None,
    ) -> tuple[Evaluation, Evaluation | None]:
        """Return the evaluations with the rewards of equation (1); keep the center's mean cost."""
        multiplier = self._multiplier.at(generation).value
        lowest = self._lowest_rewards(evaluation)
        weighed = self._weighed(evaluation, batch, multiplier, lowest)
        if center is None:
            return weighed, None
        costs = [cost for one in center.rollouts if not math.isnan(cost := self._cost(one))]
        self._center_cost = math.fsum(costs) / len(costs) if costs else None
        return weighed, self._weighed(center, batch, multiplier, lowest)

    def learn(self, generation: int) -> Mapping[str, Any]:
        """Change lambda: equations (2) to (4)."""
        values: dict[str, Any] = {LAMBDA: self._multiplier.at(generation).value}
        if self._center_cost is not None:
            values[CENTER_COST] = self._center_cost
        self._center_cost = None
        self._follow(generation, values)
        return values

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> None:
        """Restore lambda from the updates of a stopped run."""
        for update in updates:
            self._follow(update.generation, update.strategy_state)

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Report lambda and the mean cost of the center."""
        state = update.strategy_state
        return {LAMBDA: state[LAMBDA], CENTER_COST: state.get(CENTER_COST)}

    def _follow(self, generation: int, values: Mapping[str, Any]) -> None:
        settings, mean = self.settings, self._multiplier.newest.mean_excess
        value, cost = values[LAMBDA], values.get(CENTER_COST)
        if cost is not None:
            excess = max(0.0, cost - settings.cost_limit)
            keep = settings.cost_ema
            mean = excess if mean is None else keep * mean + (1 - keep) * excess
            step = settings.lambda_lr * mean
            value = scale_within(value, step, settings.lambda_min, settings.lambda_max)
        self._multiplier.follow(generation, Multiplier(value, mean))

    def _weighed(
        self,
        evaluation: Evaluation,
        batch: Sequence[Example],
        multiplier: float,
        lowest: Mapping[int, float],
    ) -> Evaluation:
        def grade(rollout: Rollout) -> Grade:
            return replace(rollout.grade, reward=self._value(rollout, multiplier, lowest))

        return replace_grades(evaluation, batch, grade)

    def _value(self, rollout: Rollout, multiplier: float, lowest: Mapping[int, float]) -> float:
        reward, cost = self._reward(rollout), self._cost(rollout)
        gate = self.settings.safe_first
        if gate is not None and cost > gate:
            reward = min(reward, lowest.get(rollout.example, reward))
        return reward - multiplier * cost

    def _lowest_rewards(self, evaluation: Evaluation) -> dict[int, float]:
        """Return the lowest known reward of the members on each example, without the cost."""
        lowest: dict[int, float] = {}
        for rollout in evaluation.rollouts:
            reward = self._reward(rollout)
            if not math.isnan(reward):
                lowest[rollout.example] = min(reward, lowest.get(rollout.example, reward))
        return lowest

    def _reward(self, rollout: Rollout) -> float:
        parts = rollout.grade.parts
        return math.fsum(weight * parts.get(n, math.nan) for n, weight in self._weights.items())

    def _cost(self, rollout: Rollout) -> float:
        return rollout.grade.parts.get(self.settings.cost, math.nan)
