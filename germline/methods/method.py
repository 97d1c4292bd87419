"""The method of a run: how it evaluates a population and learns from it; the default is `es`.

    batch      = batch_of(generation)
    population = strategy.ask(generation)
    evaluated  = method.evaluate(strategy, fleet, population, batch, decoding)
    learned    = method.learn(strategy, shape, population, evaluated)
    step       = fleet.apply(learned.update)

`Method` itself is the evolution strategy: members generate, their fitness is shaped, and the
strategy is told the utilities. A method that uses rollouts in another way overrides `evaluate` and
`learn`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline import registry
from germline.config import Config
from germline.fleet.prompt_search_fleet import PromptSearchFleet
from germline.protocols import ConstrainedStrategy, Fleet, Shaping, Strategy, Task
from germline.shaping import fitness
from germline.signal_metrics import is_zero_signal, signal_power
from germline.signal_types import SignalPower
from germline.strategies.categorical import CategoricalSearch
from germline.tasks.prompt_format import PromptFormatter
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    SeedPerturbation,
    Update,
)

TOO_MUCH_MISSING = 0.5
"""Share of missing rewards above which a generation is evaluated again; then the run stops."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a method evaluated in a generation.

    Attributes:
        rollouts: what was generated, and its rewards.
        members: by what members are compared, `[members, examples]`: their rewards, in a method
            whose members generate.
        center: evaluation of the center, where `population.evaluate_center` asks for it.
        share: of the batch on which each member is compared.
    """

    rollouts: Evaluation
    members: Evaluation
    center: Evaluation | None = None
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a method learned from a generation.

    Attributes:
        fitness: of the members.
        mean_rewards: what generations.jsonl summarizes: the fitness of members that generate, or
            the mean reward of each sample of the center.
        utilities: of the members.
        update: of theta.
        power: signal and noise of the generation.
        metrics: values of the method by their names in generations.jsonl.
    """

    fitness: Float64[np.ndarray, " members"]
    mean_rewards: Float64[np.ndarray, " rows"]
    utilities: Float64[np.ndarray, " members"]
    update: Update | MeanUpdate
    power: SignalPower | None
    metrics: Mapping[str, Any] = field(default_factory=dict)


class Method:
    """The evolution strategy, and the base class of the other methods.

    `config.method` has the facts about a method that need no objects, such as `trains_center`.
    """

    def check_task(self, task: Task) -> None:
        """Refuse a task that the method cannot train on, before a model is loaded.

        Raises:
            GermlineError: the task lacks something that the method needs.
        """

    def wrap_strategy(self, strategy: Strategy) -> Strategy:
        """Return the strategy of the run, which wraps the one that proposes members."""
        return strategy

    def wrap_fleet(self, fleet: Fleet, strategy: Strategy, task: Task) -> Fleet:
        """Return the fleet of the run, which wraps the fleet of engines.

        Args:
            fleet: the fleet of engines.
            strategy: the strategy that `wrap_strategy` returned.
            task: the task of the run.
        """
        return fleet

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> None:
        """Restore what adapts from the updates of a stopped run."""

    def batch_generation(self, generation: int) -> int:
        """Return the generation whose batch of examples this generation uses."""
        return generation

    def sampled_at(self, generation: int) -> int:
        """Return the generation whose completions this generation uses."""
        return generation

    def sample(self, fleet: Fleet, batch: Sequence[Example], decoding: Decoding) -> None:
        """Generate the completions again that a stopped run went on using.

        Args:
            fleet: with the weights that generated them.
            batch: of `sampled_at`.
            decoding: of `sampled_at`.
        """

    def evaluate(
        self,
        strategy: Strategy,
        fleet: Fleet,
        population: Population,
        batch: Sequence[Example],
        decoding: Decoding,
    ) -> Evaluated:
        """Let every member generate for the batch.

        Raises:
            GermlineError: too many rewards are missing, twice in a row.
        """
        evaluation = evaluate_again(
            lambda: fleet.evaluate(population, batch, decoding), population.generation
        )
        center = fleet.evaluate_center(batch, decoding) if population.evaluate_center else None
        if isinstance(strategy, ConstrainedStrategy):
            evaluation, center = strategy.weigh(population, batch, evaluation, center)
        return Evaluated(rollouts=evaluation, members=evaluation, center=center)

    def learn(
        self, strategy: Strategy, shape: Shaping, population: Population, evaluated: Evaluated
    ) -> Learned:
        """Shape the fitness of the members, and tell the strategy."""
        fit, center = _fitness(evaluated.members, evaluated.center)
        utilities = shape(
            evaluated.members, antithetic=population.antithetic, baseline=population.baseline
        )
        power = signal_power(population, evaluated.members, shape)
        update = strategy.tell(population, utilities, fit, center, power)
        return Learned(
            fitness=fit, mean_rewards=fit, utilities=utilities, update=update, power=power
        )

    def is_zero_signal(self, update: Update | MeanUpdate) -> bool:
        """Say whether the generation of an update has no signal."""
        return is_zero_signal(update)

    def voting_members(self) -> Sequence[SeedPerturbation]:
        """Return the members that answer by vote, best first; none where the center answers."""
        return ()

    def ensemble_rows(self) -> Sequence[dict[str, Any]]:
        """Return the rows of `ensemble.json`, one per voting member."""
        return ()

    def result_update(self) -> Update | None:
        """Return the update from theta to the weights to export; None: theta itself.

        Raises:
            GermlineError: the run has no result yet.
        """
        return None


class EvolutionStrategyMethod(Method):
    """The method `es`: the strategy learns theta, and prompt options if some are given."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def check_task(self, task: Task) -> None:
        """Refuse a task with fewer solved examples than `prompt_search.few_shot` needs.

        Raises:
            GermlineError: it has fewer.
        """
        if self.config.prompt_search.few_shot:
            self._formatter(task)

    def wrap_strategy(self, strategy: Strategy) -> Strategy:
        """Return the strategy, wrapped in a search of prompt options if some are given."""
        search = self.config.prompt_search
        return CategoricalSearch(search, strategy, self.config.seed) if search.options else strategy

    def wrap_fleet(self, fleet: Fleet, strategy: Strategy, task: Task) -> Fleet:
        """Return the fleet, wrapped in one that applies the members' prompt options."""
        if not isinstance(strategy, CategoricalSearch):
            return fleet
        return PromptSearchFleet(fleet, self._formatter(task).format_prompt, strategy.likeliest)

    def _formatter(self, task: Task) -> PromptFormatter:
        most = max(self.config.prompt_search.few_shot, default=0)
        return PromptFormatter(task.examples("train"), self.config.seed, most)


def make_method(config: Config) -> Method:
    """Construct the method a config names."""
    method: Method = registry.create("method", config, kind=config.method.kind)
    return method


def evaluate_again(evaluate: Callable[[], Evaluation], generation: int) -> Evaluation:
    """Evaluate, and once more if too many rewards are missing.

    Raises:
        GermlineError: too many are missing, twice in a row.
    """
    for _attempt in range(2):
        evaluation = evaluate()
        missing = float(np.isnan(evaluation.rewards).mean())
        if missing <= TOO_MUCH_MISSING:
            return evaluation
    lost = [rollout.grade for rollout in evaluation.rollouts if math.isnan(rollout.grade.reward)]
    reasons = sorted({grade.failure or "no reason given" for grade in lost}) or ["no rollouts"]
    kept = "Earlier generations are recorded: remove" if generation else "Remove"
    raise GermlineError(
        f"generation {generation}: {missing:.0%} of the rewards are missing, twice in a row "
        f"({'; '.join(reasons[:3])}). {kept} the cause, then resume the run"
    )


def _fitness(
    evaluation: Evaluation, of_center: Evaluation | None
) -> tuple[Float64[np.ndarray, " members"], float | None]:
    """Return the fitness of the members, and of the center if it was evaluated; NaN: missing.

    They are fitted together, so that missing rewards do not shift the center against the members.
    """
    if of_center is None:
        return fitness(evaluation.rewards), None
    together = fitness(np.concatenate([evaluation.rewards, of_center.rewards]))
    return together[:-1], float(together[-1])
