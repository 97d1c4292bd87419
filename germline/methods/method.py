"""The method of a run: how it evaluates a population and learns from it; the default is `es`.

    batch      = batch_of(generation)
    population = method.ask(generation)
    evaluated  = method.evaluate(fleet, population, batch, decoding)
    learned    = method.learn(population, evaluated)
    step       = method.apply(fleet, learned.update)

`Method` itself is the evolution strategy: members generate, their fitness is shaped, and the
strategy is told the utilities. A method that uses rollouts in another way is a class in a file of
its own, which overrides what differs; `config.methods` has its section.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline import registry
from germline.config import Config
from germline.config.methods import SampleFitness
from germline.evaluation.statistics import majority_at_k
from germline.fleet import Fleet
from germline.methods.reward_term import RewardTerm
from germline.protocols import Members, Shaping, Strategy, Task
from germline.rollout import repeat_examples
from germline.shaping import fitness, utilities
from germline.signal_metrics import is_zero_signal, signal_power
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    SeedPerturbation,
    SignalPower,
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
        metrics: values of the method by their names in generations.jsonl. For the budget of the
            run, a method reports here or in `Method.metrics` the tokens, prompts included, that its
            fleet does not count: `backward_tokens`, whose gradient it computed, and
            `forward_tokens`, which it read without a gradient.
    """

    fitness: Float64[np.ndarray, " members"]
    mean_rewards: Float64[np.ndarray, " rows"]
    utilities: Float64[np.ndarray, " members"]
    update: Update | MeanUpdate
    power: SignalPower | None
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SampleReducer:
    """The reward of several samples of an example by one member.

        mean        mean of the n rewards
        pass_at_k   the largest of them: for rewards of 0 and 1, pass@k with k = n
        worst_of_k  the smallest of them
        majority    reward of the answer that most samples give, as majority@k of `germline eval`

    An example of which a sample has no reward has none. Sample k of an example has the same
    sampling noise for every member.

    Attributes:
        samples: `method.samples`.
        fitness: `method.fitness`.
        task: a `VotableTask` for `majority`, whose answers it extracts.
    """

    samples: int = 1
    fitness: SampleFitness = "mean"
    task: Any = None

    def reduced(self, evaluation: Evaluation, examples: Sequence[Example]) -> Evaluation:
        """Return the evaluation of repeated examples with a reward for each example."""
        if self.samples == 1:
            return evaluation
        members = len(evaluation.rewards)
        rewards = evaluation.rewards.reshape(members, len(examples), self.samples)
        if self.fitness == "majority":
            reduced = self._majorities(rewards, evaluation, examples)
        else:
            names = {"mean": "mean", "pass_at_k": "max", "worst_of_k": "min"}
            reduced = getattr(rewards, names[self.fitness])(axis=2)
        known = np.isfinite(rewards).all(axis=2)
        return replace(evaluation, rewards=np.where(known, reduced, np.nan))

    def _majorities(
        self,
        rewards: Float64[np.ndarray, "members examples samples"],
        evaluation: Evaluation,
        examples: Sequence[Example],
    ) -> Float64[np.ndarray, "members examples"]:
        found = np.full(rewards.shape[:2], np.nan)
        texts: dict[int, list[str]] = {}
        for rollout in evaluation.rollouts:  # of a member, or of none of its examples
            texts.setdefault(rollout.member, []).append(rollout.completion.text)
        for member, of_member in texts.items():
            answers = [
                [
                    self.task.answer_of(of_member[place * self.samples + sample], example)
                    for place, example in enumerate(examples)
                ]
                for sample in range(self.samples)
            ]
            found[member] = majority_at_k(rewards[member].T, answers)
        return found


class Method:
    """The evolution strategy, and the base class of the other methods.

    `config.method` has the facts about a method that need no objects, such as `trains_center`.

    Args:
        strategy: proposes members and learns from them.
        shape: rewards -> utilities.
        terms: change rewards, in this order.

    Attributes:
        config: of the run; a method that no config names has none.
        task: None where nothing is evaluated.
    """

    config: Config
    task: Task | None = None

    def __init__(
        self, strategy: Strategy, shape: Shaping, terms: Sequence[RewardTerm] = ()
    ) -> None:
        self.strategy = strategy
        self.shape = shape
        self.terms = tuple(terms)
        self.reducer = SampleReducer()

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> "Method":
        """Make the method of a run; `task` is None where nothing is evaluated."""
        method = cls(strategy, partial(utilities, config.shaping), terms)
        method.config, method.task = config, task
        return method

    @property
    def section(self) -> Any:
        """The section of the method in the config."""
        return self.config.method

    @property
    def run_seed(self) -> int:
        """The seed of the run."""
        return self.config.seed

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse a task that the method cannot train on, before a model is loaded."""

    @property
    def center_is_theta(self) -> bool:
        """Whether the result of a run is theta alone, and nothing that is recalled."""
        names = ("evaluate_center", "present", "voting_members", "result_update")
        return all(getattr(type(self), name) is getattr(Method, name) for name in names)

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore what adapts from the updates of a stopped run; return them, complete."""
        for term in self.terms:
            term.recall(updates)
        return self.strategy.recall(updates)

    def batch_generation(self, generation: int) -> int:
        """Return the generation whose batch of examples this generation uses."""
        return generation

    def sampled_at(self, generation: int) -> int:
        """Return the generation whose completions this generation uses."""
        return generation

    def sample(self, fleet: Fleet, batch: Sequence[Example], decoding: Decoding) -> None:
        """Generate the completions of generation `sampled_at` again, with its weights."""

    def ask(self, generation: int) -> Population:
        """Return the members of a generation."""
        population = self.strategy.ask(generation)
        if any(term.needs_center for term in self.terms):
            population = replace(population, evaluate_center=True)
        return population

    def present(
        self, examples: Sequence[Example], decoding: Decoding
    ) -> tuple[Sequence[Example], Decoding]:
        """Return the examples as the center is prompted with them, and its decoding."""
        return examples, decoding

    def evaluate_members(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Let every member generate for the batch."""
        repeated = repeat_examples(batch, self.reducer.samples)
        evaluation = fleet.evaluate(population, repeated, decoding)
        graded = self._graded(fleet, population.members, repeated, evaluation)
        return self.reducer.reduced(graded, batch)

    def evaluate_center(
        self, fleet: Fleet, examples: Sequence[Example], decoding: Decoding, samples: int = 1
    ) -> Evaluation:
        """Evaluate what the run has learned so far: `rewards[samples, examples]`.

        The rewards are those of the task, as held-out scores and `germline eval` report them.
        """
        prompted, decoding = self.present(examples, decoding)
        return fleet.evaluate_center(prompted, decoding, samples)

    def evaluate_center_with_terms(
        self, fleet: Fleet, examples: Sequence[Example], decoding: Decoding, samples: int = 1
    ) -> Evaluation:
        """Evaluate the center by the rewards that the run learns from."""
        evaluation = self.evaluate_center(fleet, examples, decoding, samples)
        prompted, _ = self.present(examples, decoding)
        return self._graded(fleet, [None] * samples, prompted, evaluation)

    def sample_center(
        self,
        fleet: Fleet,
        examples: Sequence[Example],
        decoding: Decoding,
        samples: int,
        temperature: float,
    ) -> Evaluation:
        """Let the center sample, at a temperature, what the run learns from."""
        decoding = replace(decoding, temperature=temperature)
        return evaluate_again(
            lambda: self.evaluate_center_with_terms(fleet, examples, decoding, samples),
            decoding.noise_generation,
        )

    def evaluate(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluated:
        """Let every member generate for the batch, and the center where its fitness is needed."""
        evaluation = evaluate_again(
            lambda: self.evaluate_members(fleet, population, batch, decoding), population.generation
        )
        center = (
            self._evaluate_center_as_member(fleet, batch, decoding)
            if population.evaluate_center
            else None
        )
        for term in self.terms:
            evaluation, center = term.weigh(population.generation, batch, evaluation, center)
        return Evaluated(rollouts=evaluation, members=evaluation, center=center)

    def _evaluate_center_as_member(
        self, fleet: Fleet, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate the center by the rewards of a member: `rewards[1, examples]`."""
        repeated = repeat_examples(batch, self.reducer.samples)
        evaluation = self.evaluate_center_with_terms(fleet, repeated, decoding)
        return self.reducer.reduced(evaluation, batch)

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Shape the fitness of the members, and tell the strategy."""
        # The center is fitted with the members, so that missing rewards do not shift it.
        together = [one.rewards for one in (evaluated.members, evaluated.center) if one is not None]
        all_fit = fitness(np.concatenate(together))
        fit = all_fit[: len(population)]
        center = None if evaluated.center is None else float(all_fit[-1])
        shaped = self.shape(
            evaluated.members, antithetic=population.antithetic, baseline=population.baseline
        )
        power = signal_power(population, evaluated.members, self.shape, evaluated.share)
        update = self.strategy.tell(population, shaped, fit, center, power)
        for term in self.terms:
            update = with_state(update, term.learn(population.generation))
        return Learned(fitness=fit, mean_rewards=fit, utilities=shaped, update=update, power=power)

    def apply(self, fleet: Fleet, update: Update | MeanUpdate) -> None:
        """Change theta by an update."""
        fleet.apply(update)

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return what the strategy and the terms report of a generation, by name."""
        found = dict(self.strategy.metrics(update))
        for term in self.terms:
            found |= term.metrics(update)
        return found

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
        """Return the update from theta to the weights to export; None: theta itself."""
        return None

    def close(self) -> None:
        """Release what the terms loaded."""
        for term in self.terms:
            term.close()

    def _graded(
        self, fleet: Fleet, members: Members, examples: Sequence[Example], evaluation: Evaluation
    ) -> Evaluation:
        for term in self.terms:
            evaluation = term.grade(fleet, members, examples, evaluation)
        return evaluation


def make_method(
    config: Config, strategy: Strategy, task: Task | None = None, terms: Sequence[RewardTerm] = ()
) -> Method:
    """Construct the method a config names; see `Method.from_config`."""
    kind = config.method.kind
    method: Method = registry.create("method", config, strategy, task, terms, kind=kind)
    return method


def check_task(config: Config, task: Task) -> None:
    """Refuse a task that the method of a config cannot train on."""
    registry.implementation("method", config.method.kind).check_task(config, task)


def with_state(update: Update | MeanUpdate, values: Mapping[str, Any]) -> Update | MeanUpdate:
    """Return an update whose strategy state, which the journal keeps, has more values."""
    return replace(update, strategy_state={**update.strategy_state, **values})


def evaluate_again(evaluate: Callable[[], Evaluation], generation: int) -> Evaluation:
    """Evaluate, and once more if too many rewards are missing; then raise an error."""
    for _attempt in range(2):
        evaluation = evaluate()
        missing = float(np.isnan(evaluation.rewards).mean())
        if missing <= TOO_MUCH_MISSING:
            return evaluation
    lost = [rollout.grade for rollout in evaluation.rollouts if math.isnan(rollout.grade.reward)]
    reasons = sorted({grade.failure or "no reason given" for grade in lost}) or ["no rollouts"]
    kept = "Earlier generations are recorded: remove" if generation else "Remove"
    raise GermlineError(
        f"generation {generation}: {missing:.0%} of the rewards are missing, twice in a row, "
        f"and at most {TOO_MUCH_MISSING:.0%} may be ({'; '.join(reasons[:3])}). {kept} the cause, "
        "then resume the run"
    )
