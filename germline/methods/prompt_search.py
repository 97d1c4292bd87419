"""The prompt search: template, temperature and number of solved examples, besides the weights.

The strategy searches the weights. Beside it, each setting d of `prompt_search` has a
probability p_dk for each of its options k; all options are equally likely at first. Each member
draws one option of every setting; the members of an antithetic pair share their options, so that
their difference in fitness is due to the weights alone. With the utilities u_i of the members, and
o_i the option of member i as ones and zeros,

    (1)  p_d <- p_d + learning_rate / N * sum_i u_i (o_i - p_d)
    (2)  p_d <- max(p_d, min_probability); what (2) adds is subtracted from the other options, in
                proportion to their excess over min_probability

(1) is the natural gradient of expected utility in the probabilities of a categorical distribution
(Shirakawa et al. 2018, arXiv 1801.07650, with the 1/N of `nes`, so that the learning rate does not
depend on the population). The settings are independent of each other: a good combination of options
is found only if each of its options is better on average.

Deviations: the learning rate is constant; ASNG (Akimoto et al. 2019, arXiv 1905.08537) adapts it.

Limits: the effect of options adds to the spread of fitness, so with z-scores the weights learn less
while options differ much. Utilities must have mean 0; members with missing rewards have utility 0.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from jaxtyping import Float

from germline import noise
from germline.config import Config, PromptSearch
from germline.config.methods import EvolutionStrategy
from germline.fleet import Fleet
from germline.methods.method import Evaluated, Learned, Method, SampleReducer, with_state
from germline.methods.reward_term import RewardTerm
from germline.protocols import EpisodeTask, Strategy, Task, VotableTask
from germline.strategies.adaptive_values import AdaptiveValue
from germline.tasks.task_settings import PromptFormatter
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    PromptVariant,
    Rollout,
    Update,
)

Probabilities = tuple[tuple[float, ...], ...]
"""Probability of every option, setting by setting."""

STATE = "choices"
"""Name of the probabilities in the strategy state; frozen, as journals have it."""

STREAMS = {"few_shot": "shots"}
"""Names of noise streams where they differ from the setting: frozen, or old runs would change."""


class EvolutionStrategyMethod(Method):
    """The method `es` with prompt options; without them it is `Method` itself."""

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> Method:
        """Make the method of a run, see `Method.from_config`."""
        make = super().from_config if config.prompt_search.options else Method.from_config
        made, section = make(config, strategy, task, terms), config.method
        assert isinstance(section, EvolutionStrategy)
        made.reducer = SampleReducer(section.samples, section.fitness, task)
        return made

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse fewer solved examples than `prompt_search.few_shot` needs, and no answers."""
        is_voted = getattr(config.method, "fitness", "") == "majority"
        if is_voted and (isinstance(task, EpisodeTask) or not isinstance(task, VotableTask)):
            raise GermlineError(
                f"method.fitness=majority: task.kind={config.task.kind} extracts no answers to "
                "vote with: use mean, pass_at_k or worst_of_k"
            )
        if config.prompt_search.few_shot:
            _formatter(config, task)

    @property
    def search(self) -> PromptSearch:
        """The settings of the search."""
        return self.config.prompt_search

    @cached_property
    def _probabilities(self) -> AdaptiveValue[Probabilities]:
        options = self.search.options.values()
        equal = tuple((1 / len(some),) * len(some) for some in options)
        return AdaptiveValue("the prompt options", equal)

    @cached_property
    def _format_prompt(self) -> Callable[[Example, PromptVariant], Example]:
        """Return an example as the model is prompted with it."""
        if self.task is None:
            return lambda example, _variant: example
        return _formatter(self.config, self.task).format_prompt

    @property
    def probabilities(self) -> Probabilities:
        """Present probability of every option."""
        return self._probabilities.newest

    def likeliest(self) -> PromptVariant:
        """Return the options that the center uses: the most likely ones, the first of equals."""
        return self._variant([one.index(max(one)) for one in self.probabilities])

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore what adapts from the updates of a stopped run; return them, complete."""
        for update in updates:
            self._probabilities.follow(update.generation, _recorded_probabilities(update))
        return super().recall(updates)

    def ask(self, generation: int) -> Population:
        """Return the members of a generation, each with its prompt options."""
        population = super().ask(generation)
        return replace(
            population, prompt_variants=tuple(map(self._variant, self._drawn(population)))
        )

    def present(
        self, examples: Sequence[Example], decoding: Decoding
    ) -> tuple[Sequence[Example], Decoding]:
        """Return the examples and the decoding of the most probable options."""
        return self.prompted(examples, decoding, self.likeliest())

    def evaluate_members(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate the members of each variant together, in the order of their first members.

        So the microbatches depend on the population alone, not on the number of engines.
        """
        rewards = np.full((len(population), len(batch)), np.nan)
        rollouts: list[Rollout] = []
        parts: list[Evaluation] = []
        for variant in dict.fromkeys(population.prompt_variants):
            places = [
                place for place, one in enumerate(population.prompt_variants) if one == variant
            ]
            members = tuple(population.members[place] for place in places)
            together = replace(population, members=members, prompt_variants=())
            prompted = self.prompted(batch, decoding, variant)
            part = super().evaluate_members(fleet, together, *prompted)
            rewards[places] = part.rewards
            rollouts += [replace(one, member=places[one.member]) for one in part.rollouts]
            parts.append(part)
        rollouts.sort(key=lambda rollout: rollout.member)
        return replace(
            parts[0],
            rewards=rewards,
            rollouts=tuple(rollouts),
            tokens=sum(part.tokens for part in parts),
            decode_seconds=sum(part.decode_seconds for part in parts),
        )

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Tell the strategy, and change the probabilities of the options."""
        learned = super().learn(population, evaluated)
        state = {STATE: self.learn_options(population, learned.utilities)}
        return replace(learned, update=with_state(learned.update, state))

    def learn_options(
        self, population: Population, utilities: Float[np.ndarray, "members"]
    ) -> list[Any]:
        """Change the probabilities, equations (1) and (2); return them for the journal."""
        drawn = self._drawn(population)
        probabilities = tuple(
            self._changed(before, [places[setting] for places in drawn], utilities.tolist())
            for setting, before in enumerate(self._probabilities.at(population.generation))
        )
        self._probabilities.follow(population.generation, probabilities)
        return [list(options) for options in probabilities]

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return what strategy and terms report of a generation, and the options' probabilities."""
        settings = zip(self.search.options.items(), _recorded_probabilities(update), strict=True)
        by_option = {
            name: dict(zip(map(str, options), probabilities, strict=True))
            for (name, options), probabilities in settings
        }
        return {**super().metrics(update), "option_probabilities": by_option}

    def prompted(
        self, examples: Sequence[Example], decoding: Decoding, variant: PromptVariant
    ) -> tuple[list[Example], Decoding]:
        """Return the examples and the decoding that a variant makes of them."""
        if variant.temperature is not None:
            decoding = replace(decoding, temperature=variant.temperature)
        return [self._format_prompt(example, variant) for example in examples], decoding

    def _drawn(self, population: Population) -> list[tuple[int, ...]]:
        """Return for each member the index of its option in every setting."""
        generation, members_per_draw = population.generation, 2 if population.antithetic else 1
        draws = range(len(population) // members_per_draw)
        by_setting = []
        for name, probabilities in zip(
            self.search.options, self._probabilities.at(generation), strict=True
        ):
            sampling_noise = noise.sampling_uniforms(
                self.run_seed, generation, f"choice of {STREAMS.get(name, name)}", draws, 1
            )[:, 0]
            by_setting.append([_option_at(probabilities, float(u)) for u in sampling_noise])
        return [places for places in zip(*by_setting, strict=True) for _ in range(members_per_draw)]

    def _variant(self, places: Sequence[int]) -> PromptVariant:
        options = self.search.options.items()
        chosen: dict[str, Any] = {
            name: some[place] for (name, some), place in zip(options, places, strict=True)
        }
        return PromptVariant(**chosen)

    def _changed(
        self, probabilities: Sequence[float], options: Sequence[int], utilities: Sequence[float]
    ) -> tuple[float, ...]:
        """Return the probabilities of one setting after equations (1) and (2)."""
        rows = list(zip(utilities, options, strict=True))
        rate = self.search.learning_rate / len(rows)
        changed = [
            p + rate * math.fsum(u * ((k == option) - p) for u, k in rows)
            for option, p in enumerate(probabilities)
        ]
        return _bounded_below(changed, self.search.min_probability)


def _formatter(config: Config, task: Task) -> PromptFormatter:
    most = max(config.prompt_search.few_shot, default=0)
    return PromptFormatter(task.examples("train"), config.seed, most)


def _recorded_probabilities(update: Update | MeanUpdate) -> Probabilities:
    return tuple(map(tuple, update.strategy_state[STATE]))


def _option_at(probabilities: Sequence[float], uniform: float) -> int:
    """Return the option whose part of the unit interval contains a uniform random number."""
    return min(bisect(list(accumulate(probabilities)), uniform), len(probabilities) - 1)


def _bounded_below(probabilities: Sequence[float], minimum: float) -> tuple[float, ...]:
    """Raise probabilities below the minimum to it, and scale the others so that the sum is 1."""
    excess = [max(0.0, p - minimum) for p in probabilities]
    rest = 1 - minimum * len(probabilities)
    return tuple(minimum + rest * e / math.fsum(excess) for e in excess)
