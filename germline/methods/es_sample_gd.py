"""Sample with an evolution strategy, optimize with gradients: which of the two makes ES work?

An evolution strategy explores by perturbing weights and learns by weighting the perturbations. Here
the two are separate: perturbed members generate the rollouts, and theta follows a policy gradient
on those rollouts, computed by backpropagation (`policy_gradient`). Alternatively the center
explores by sampling tokens, as policy gradient methods do; the update stays the same.

    exploration: weights        member i generates with theta + s_i sigma eps_i
    exploration: temperature    "member" i is the center, with its own sampling noise
    advantage: example          each reward is shaped among those of the members on its example
    advantage: member           every completion of a member has the member's utility, as in ES

Then theta <- theta + step(g), by the optimizer of the strategy. The step changes the tensors that
the space selects, as a whole: with `space.kind=low_rank` members explore by low-rank noise, and the
step has full rank.

Limits: seeds cannot repeat a gradient. A run resumes from its newest snapshot, to the same bits on
the same machine, and cannot be replayed from its journal. One engine; its model is run forwards and
backwards in one process.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from germline.config import Config, EsSampleGradientDescent
from germline.engines.inprocess import InProcessEngine
from germline.methods.method import Evaluated, Learned, Method
from germline.methods.policy_gradient import AdvantageRow, PolicyGradient
from germline.methods.reward_term import RewardTerm
from germline.protocols import EpisodeTask, Fleet, Strategy, Task
from germline.shaping import utilities
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    Rollout,
    Update,
    UpdateSize,
)


class EsSampleGradientDescentMethod(Method):
    """Theta follows the policy gradient of the members' rollouts."""

    def __init__(
        self, config: Config, strategy: Strategy, terms: Sequence[RewardTerm] = ()
    ) -> None:
        super().__init__(strategy, partial(utilities, config.shaping), terms)
        assert isinstance(config.method, EsSampleGradientDescent)
        self.section = config.method
        self._evaluated: tuple[Population, Sequence[Example], Evaluation, Decoding] | None = None

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> "EsSampleGradientDescentMethod":
        """Make the method of a run, see `Method.from_config`."""
        return cls(config, strategy, terms)

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse a task of episodes.

        Raises:
            GermlineError: the task has episodes.
        """
        if isinstance(task, EpisodeTask):
            raise GermlineError(
                "method.kind=es_sample_gd follows the gradient of single completions, and "
                f"task.kind={config.task.kind} has episodes of several turns: "
                "use method.kind=es"
            )

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

    def apply(self, fleet: Fleet, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply a step of the optimizer along the gradient g of the last evaluation.

        Raises:
            GermlineError: no evaluation came before, the engine has no gradients, or the step is
                too large.
        """
        engine = getattr(fleet, "engine", None)
        if not isinstance(engine, InProcessEngine) or self._evaluated is None:
            raise GermlineError(
                "method.kind=es_sample_gd follows the gradient of what an engine of "
                "engine.kind=inprocess has just evaluated"
            )
        if isinstance(update, MeanUpdate) or update.skipped:
            return fleet.apply(update)
        population, batch, evaluation, decoding = self._evaluated
        rows = self._weighed(population, batch, evaluation)
        method = PolicyGradient(decoding.temperature or 1.0, self.section.clip, self.section.rows)
        gradient = method.of(engine, rows, evaluation.rewards.size)
        weights = engine.weights
        for info in weights.searched:
            master = weights.tensors[info.name]
            weights.optimizer.step(
                info.name,
                master,
                gradient[info.name].to(master.device),
                update.learning_rate,
                update.generation,
                weights.units[info.name],
            )
        weights.check_finite(update)
        engine.refresh()
        self._evaluated = None
        return None

    def _weighed(
        self, population: Population, batch: Sequence[Example], evaluation: Evaluation
    ) -> list[AdvantageRow]:
        """Return the completions with their advantages, except those with advantage 0."""
        advantages = self._advantages(population, evaluation)
        place_of = {example.index: place for place, example in enumerate(batch)}
        center = self.section.exploration == "temperature"

        def weighed(one: Rollout) -> AdvantageRow:
            place = place_of[one.example]
            member = None if center else population.members[one.member]
            advantage = float(advantages[one.member, place])
            return AdvantageRow(member, batch[place], one.completion, advantage)

        rows = [weighed(rollout) for rollout in evaluation.rollouts]
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
