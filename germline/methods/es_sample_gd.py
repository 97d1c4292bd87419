"""Sample with an evolution strategy, optimize with gradients: which of the two makes ES work?

An evolution strategy explores by perturbing weights and learns by weighting the perturbations. Here
the two are separate: perturbed members generate the rollouts, and theta follows a policy gradient
on those rollouts, computed by backpropagation. Alternatively the center explores by sampling
tokens, as policy gradient methods do; the update stays the same.

    exploration: weights        member i generates with theta + s_i sigma eps_i
    exploration: temperature    "member" i is the center, with its own sampling noise
    advantage: example          each reward is shaped among those of the members on its example
    advantage: member           every completion of a member has the member's utility, as in ES

Of R completions y_r with advantages A_r, theta being the center's weights and t a token,

    (1)  g = d/d theta  1/R sum_r A_r sum_t log p_theta(y_rt)                      REINFORCE

which treats completions of perturbed members as if the center had written them. Probabilities are
those at the sampling temperature, or at 1 for greedy completions.

Then theta <- theta + step(g), by the optimizer of the strategy. The step changes the tensors that
the space selects, as a whole: with `space.kind=low_rank` members explore by low-rank noise, and the
step has full rank. `policy_gradient` has the memory it takes, and its limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from germline.engines.inprocess import InProcessEngine
from germline.fleet import Fleet
from germline.methods.method import Evaluated, Learned
from germline.methods.policy_gradient import (
    GradientMethod,
    TextRow,
    step_theta,
    summed_gradients,
    token_outputs,
)
from germline.types import Decoding, Evaluation, Example, Population, Rollout, Update


@dataclass(frozen=True)
class AdvantageRow(TextRow):
    """A completion and its advantage."""

    advantage: float


def policy_gradient(
    engine: InProcessEngine,
    rows: Sequence[AdvantageRow],
    count: int,
    temperature: float = 1.0,
    rows_per_pass: int = 32,
) -> Mapping[str, Tensor]:
    """Return equation (1) of every searched tensor, in fp32, on the model's device.

    Args:
        engine: serves the center; its weights are not changed.
        rows: completions whose advantage is not 0.
        count: R, the number of all completions.
        temperature: of the probabilities.
        rows_per_pass: completions that are read at once.
    """

    def objective(some: slice) -> Tensor:
        outputs = token_outputs(engine, rows[some], temperature)
        total = outputs[0].log_probs.new_zeros(())
        for row, one in zip(rows[some], outputs, strict=True):
            total = total + row.advantage * one.log_probs.sum()
        return total / count

    return summed_gradients(engine, len(rows), rows_per_pass, objective)


class EsSampleGradientDescentMethod(GradientMethod):
    """Theta follows the policy gradient of the members' rollouts."""

    _evaluated: tuple[Population, Sequence[Example], Evaluation, Decoding] | None = None

    def ask(self, generation: int) -> Population:
        """Return the members; with `exploration: temperature`, all of them equal the center."""
        population = super().ask(generation)
        if self.section.exploration == "weights":
            return population
        members = tuple(replace(member, sigma=0.0) for member in population.seed_perturbations())
        return replace(population, members=members, antithetic=False)

    def evaluate_members(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate every member, or the center as many times with different sampling noise."""
        if self.section.exploration == "weights":
            evaluation = super().evaluate_members(fleet, population, batch, decoding)
        else:
            evaluation = self.evaluate_center_with_terms(fleet, batch, decoding, len(population))
        self._evaluated = population, batch, evaluation, decoding
        return evaluation

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Learn as an evolution strategy does; theta does not follow the update."""
        learned = super().learn(population, evaluated)
        if not isinstance(learned.update, Update):
            return learned
        return replace(learned, update=replace(learned.update, backpropagated=True))

    def train(self, engine: InProcessEngine, update: Update) -> Mapping[str, Any]:
        """Take a step of the optimizer along the gradient g of the last evaluation."""
        assert self._evaluated is not None
        population, batch, evaluation, decoding = self._evaluated
        rows = self._rows(population, batch, evaluation)
        gradient = policy_gradient(
            engine, rows, evaluation.rewards.size, decoding.temperature or 1.0, self.section.rows
        )
        step_theta(engine, gradient, update, update.generation)
        self._evaluated = None
        return {"backward_tokens": sum(row.completion.length for row in rows)}

    def _rows(
        self, population: Population, batch: Sequence[Example], evaluation: Evaluation
    ) -> list[AdvantageRow]:
        """Return the completions with their advantages, except those with advantage 0."""
        advantages = self._advantages(population, evaluation)
        place_of = {example.index: place for place, example in enumerate(batch)}

        def row(rollout: Rollout) -> AdvantageRow:
            place = place_of[rollout.example]
            advantage = float(advantages[rollout.member, place])
            return AdvantageRow(batch[place], rollout.completion, advantage)

        rows = [row(rollout) for rollout in evaluation.rollouts]
        return [row for row in rows if row.advantage]

    def _advantages(
        self, population: Population, evaluation: Evaluation
    ) -> Float[np.ndarray, "members examples"]:
        rewards = evaluation.rewards
        if self.section.advantage == "member":
            shaped = self.shape(evaluation, antithetic=population.antithetic)
            return np.where(np.isnan(rewards), 0.0, shaped[:, None])
        columns = [
            self.shape(replace(evaluation, rewards=rewards[:, [place]]), antithetic=False)
            for place in range(rewards.shape[1])
        ]
        return np.stack(columns, axis=1)
