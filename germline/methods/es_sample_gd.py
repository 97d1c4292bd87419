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
from germline.fleet import LocalFleet
from germline.methods.method import Method
from germline.methods.policy_gradient import AdvantageRow, PolicyGradient
from germline.protocols import EpisodeTask, Fleet, Shaping, Strategy, Task
from germline.protocols.wrappers import FleetWrapper, StrategyWrapper
from germline.shaping import utilities
from germline.signal_types import SignalPower, UpdateSize
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    Rollout,
    Update,
)


class SamplingStrategy(StrategyWrapper):
    """The strategy: members of another one, whose rollouts give a gradient instead of an update."""

    def __init__(self, config: EsSampleGradientDescent, inner: Strategy) -> None:
        super().__init__(inner)
        self.config = config

    def ask(self, generation: int) -> Population:
        """Return the members; with `exploration: temperature`, all of them equal the center."""
        population = self.inner.ask(generation)
        if self.config.exploration == "weights":
            return population
        members = tuple(replace(member, sigma=0.0) for member in population.seed_perturbations())
        return replace(population, members=members, antithetic=False)

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update | MeanUpdate:
        """Return the inner strategy's update, marked as one that theta does not follow."""
        update = self.inner.tell(population, utilities, fitness, center, power)
        return replace(update, backpropagated=True) if isinstance(update, Update) else update


class EsSampleGradientDescentMethod(Method):
    """Theta follows the policy gradient of the members' rollouts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        assert isinstance(config.method, EsSampleGradientDescent)
        self.section = config.method

    def wrap_strategy(self, strategy: Strategy) -> Strategy:
        """Return a strategy whose updates are marked as backpropagated."""
        return SamplingStrategy(self.section, strategy)

    def check_task(self, task: Task) -> None:
        """Refuse a task of episodes.

        Raises:
            GermlineError: the task has episodes.
        """
        if isinstance(task, EpisodeTask):
            raise GermlineError(
                "method.kind=es_sample_gd follows the gradient of single completions, and "
                f"task.kind={self.config.task.kind} has episodes of several turns: "
                "use method.kind=es"
            )

    def wrap_fleet(self, fleet: Fleet, strategy: Strategy, task: Task) -> Fleet:
        """Return a fleet that follows the gradient."""
        assert isinstance(fleet, LocalFleet)  # others are refused by the method section
        return GradientFleet(fleet, self.section, partial(utilities, self.config.shaping))


class GradientFleet(FleetWrapper):
    """A fleet of one engine that follows the policy gradient of its last evaluation."""

    def __init__(self, inner: LocalFleet, config: EsSampleGradientDescent, shape: Shaping) -> None:
        super().__init__(inner)
        self.config = config
        self.shape = shape
        self.engine = inner.engine
        self._played: tuple[Population, Sequence[Example], Evaluation, Decoding] | None = None

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate every member, or the center as many times with different sampling noise."""
        if self.config.exploration == "weights":
            evaluation = self.inner.evaluate(population, batch, decoding)
        else:
            evaluation = self.inner.evaluate_center(batch, decoding, len(population))
        self._played = population, batch, evaluation, decoding
        return evaluation

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply a step of the optimizer along the gradient g of the last evaluation.

        Raises:
            GermlineError: no evaluation came before, the engine has no gradients, or the step is
                too large.
        """
        engine = self.engine
        if not isinstance(engine, InProcessEngine) or self._played is None:
            raise GermlineError(
                "method.kind=es_sample_gd follows the gradient of what an engine of "
                "engine.kind=inprocess has just evaluated"
            )
        if isinstance(update, MeanUpdate) or update.skipped:
            return self.inner.apply(update)
        population, batch, evaluation, decoding = self._played
        rows = self._weighed(population, batch, evaluation)
        method = PolicyGradient(decoding.temperature or 1.0, self.config.clip, self.config.rows)
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
        self._played = None
        return None

    def _weighed(
        self, population: Population, batch: Sequence[Example], evaluation: Evaluation
    ) -> list[AdvantageRow]:
        """Return the completions with their advantages, except those with advantage 0."""
        advantages = self._advantages(population, evaluation)
        place_of = {example.index: place for place, example in enumerate(batch)}
        center = self.config.exploration == "temperature"

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
        if self.config.advantage == "member":
            utilities = self.shape(evaluation, antithetic=population.antithetic)
            return np.where(np.isnan(rewards), 0.0, utilities[:, None])
        columns = [
            self.shape(replace(evaluation, rewards=rewards[:, [place]]), antithetic=False)
            for place in range(rewards.shape[1])
        ]
        return np.stack(columns, axis=1)
