"""The method `es`: the strategy learns theta, and the odds of prompt options if some are given."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from germline.config import Config
from germline.methods.method import Evaluated, Learned, Method, with_state
from germline.methods.prompt_search import STATE, PromptOptions
from germline.methods.reward_term import RewardTerm
from germline.protocols import Fleet, Shaping, Strategy, Task
from germline.shaping import utilities
from germline.tasks.task_settings import PromptFormatter
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    MeanUpdate,
    Population,
    PromptVariant,
    Update,
)


class EvolutionStrategyMethod(Method):
    """Members generate, and the strategy learns from their fitness.

    Args:
        strategy: proposes members and learns from them.
        shape: rewards -> utilities.
        terms: change rewards, in this order.
        options: the prompt options that members draw; None: all have the prompts of the task.
    """

    def __init__(
        self,
        strategy: Strategy,
        shape: Shaping,
        terms: Sequence[RewardTerm] = (),
        options: PromptOptions | None = None,
    ) -> None:
        super().__init__(strategy, shape, terms)
        self.options = options

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> "EvolutionStrategyMethod":
        """Make the method of a run, see `Method.from_config`."""
        search, options = config.prompt_search, None
        if search.options:
            present = _formatter(config, task).format_prompt if task else _unchanged
            options = PromptOptions(search, config.seed, present)
        return cls(strategy, partial(utilities, config.shaping), terms, options)

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse a task with fewer solved examples than `prompt_search.few_shot` needs.

        Raises:
            GermlineError: it has fewer.
        """
        if config.prompt_search.few_shot:
            _formatter(config, task)

    @property
    def center_is_theta(self) -> bool:
        """Whether there are no prompt options, whose probabilities change the center's prompts."""
        return self.options is None

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore what adapts from the updates of a stopped run; return them, complete."""
        if self.options:
            self.options.recall(updates)
        return super().recall(updates)

    def ask(self, generation: int) -> Population:
        """Return the members of a generation, each with its prompt options."""
        population = super().ask(generation)
        if self.options:
            population = replace(population, prompt_variants=self.options.draw(population))
        return population

    def present(
        self, examples: Sequence[Example], decoding: Decoding
    ) -> tuple[Sequence[Example], Decoding]:
        """Return the examples and the decoding of the most probable options."""
        if not self.options:
            return examples, decoding
        return self.options.prompted(examples, decoding, self.options.likeliest())

    def evaluate_members(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Let every member generate for the batch, with its prompt options."""
        evaluate = partial(super().evaluate_members, fleet)
        if not self.options:
            return evaluate(population, batch, decoding)
        return self.options.evaluate(evaluate, population, batch, decoding)

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Tell the strategy, and change the probabilities of the options."""
        learned = super().learn(population, evaluated)
        if not self.options:
            return learned
        state = {STATE: self.options.learn(population, learned.utilities)}
        return replace(learned, update=with_state(learned.update, state))

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return what strategy, terms and options report of a generation, by name."""
        found = super().metrics(update)
        return {**found, **self.options.metrics(update)} if self.options else found


def _unchanged(example: Example, _: PromptVariant) -> Example:
    return example


def _formatter(config: Config, task: Task) -> PromptFormatter:
    most = max(config.prompt_search.few_shot, default=0)
    return PromptFormatter(task.examples("train"), config.seed, most)
