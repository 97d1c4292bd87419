"""The prompt search: template, temperature and number of solved examples, besides the weights.

The inner strategy searches the weights. Beside it, each setting d of `prompt_search` has a
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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from germline import noise
from germline.config import PromptSearch
from germline.prompt_variant import PromptVariant
from germline.protocols import Strategy
from germline.protocols.wrappers import StrategyWrapper
from germline.signal_types import SignalPower
from germline.strategies.adaptive_values import AdaptiveValue
from germline.types import (
    GermlineError,
    MeanUpdate,
    Population,
    Update,
)

Probabilities = tuple[tuple[float, ...], ...]
"""Probability of every option, setting by setting."""

STATE = "choices"
"""Name of the probabilities in the strategy state; frozen, as journals have it."""

STREAMS = {"few_shot": "shots"}
"""Names of noise streams where they differ from the setting: frozen, or old runs would change."""


class CategoricalSearch(StrategyWrapper):
    """Draws the prompt options of the inner strategy's members, and learns their probabilities."""

    def __init__(self, config: PromptSearch, inner: Strategy, run_seed: int) -> None:
        super().__init__(inner)
        self.config = config
        self.run_seed = run_seed
        equal = tuple((1 / len(options),) * len(options) for options in config.options.values())
        self._probabilities: AdaptiveValue[Probabilities] = AdaptiveValue(
            "the prompt options", equal
        )

    @property
    def probabilities(self) -> Probabilities:
        """Present probability of every option."""
        return self._probabilities.newest

    def likeliest(self) -> PromptVariant:
        """Return the options that the center uses: the most likely ones, the first of equals."""
        return self._variant(
            [probabilities.index(max(probabilities)) for probabilities in self.probabilities]
        )

    def ask(self, generation: int) -> Population:
        """Return the members of the inner strategy, each with its prompt options."""
        population = self.inner.ask(generation)
        variants = tuple(self._variant(places) for places in self._drawn(population))
        return replace(population, prompt_variants=variants)

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update:
        """Return the update of the inner strategy; change the probabilities: equations (1), (2).

        Raises:
            GermlineError: the inner strategy is one of coordinates.
        """
        update = self.inner.tell(population, utilities, fitness, center, power)
        if isinstance(update, MeanUpdate):
            raise GermlineError("prompt_search can be used with strategy.kind=nes only")
        drawn = self._drawn(population)
        probabilities = tuple(
            self._changed(before, [places[setting] for places in drawn], utilities.tolist())
            for setting, before in enumerate(self._probabilities.at(population.generation))
        )
        self._probabilities.follow(population.generation, probabilities)
        inner = update.strategy_state
        state = {**inner.values, STATE: [list(options) for options in probabilities]}
        return replace(update, strategy_state=replace(inner, values=state))

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore the probabilities, and the inner strategy, from the updates of a stopped run."""
        for update in updates:
            self._probabilities.follow(update.generation, _recorded_probabilities(update))
        return self.inner.recall(updates)

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Report the probability of every option, besides what the inner strategy reports."""
        by_option = {
            name: dict(zip(map(str, options), probabilities, strict=True))
            for (name, options), probabilities in zip(
                self.config.options.items(), _recorded_probabilities(update), strict=True
            )
        }
        return {**super().metrics(update), "option_probabilities": by_option}

    def _drawn(self, population: Population) -> list[tuple[int, ...]]:
        """Return for each member the index of its option in every setting."""
        generation, members_per_draw = population.generation, 2 if population.antithetic else 1
        draws = range(len(population) // members_per_draw)
        by_setting = []
        for name, probabilities in zip(
            self.config.options, self._probabilities.at(generation), strict=True
        ):
            sampling_noise = noise.sampling_uniforms(
                self.run_seed, generation, f"choice of {STREAMS.get(name, name)}", draws, 1
            )[:, 0]
            by_setting.append([_option_at(probabilities, float(u)) for u in sampling_noise])
        return [places for places in zip(*by_setting, strict=True) for _ in range(members_per_draw)]

    def _variant(self, places: Sequence[int]) -> PromptVariant:
        config = self.config
        place = dict(zip(config.options, places, strict=True))
        return PromptVariant(
            temperature=config.temperature[place["temperature"]] if config.temperature else None,
            few_shot=config.few_shot[place["few_shot"]] if config.few_shot else None,
            template=config.template[place["template"]] if config.template else None,
        )

    def _changed(
        self, probabilities: Sequence[float], options: Sequence[int], utilities: Sequence[float]
    ) -> tuple[float, ...]:
        """Return the probabilities of one setting after equations (1) and (2)."""
        rows = list(zip(utilities, options, strict=True))
        rate = self.config.learning_rate / len(rows)
        changed = [
            p + rate * math.fsum(u * ((k == option) - p) for u, k in rows)
            for option, p in enumerate(probabilities)
        ]
        return _bounded_below(changed, self.config.min_probability)


def _recorded_probabilities(update: Update | MeanUpdate) -> Probabilities:
    return tuple(map(tuple, update.strategy_state.read()[STATE]))


def _option_at(probabilities: Sequence[float], uniform: float) -> int:
    """Return the option whose part of the unit interval contains a uniform random number."""
    end = 0.0
    for option, probability in enumerate(probabilities):
        end += probability
        if uniform < end:
            return option
    return len(probabilities) - 1


def _bounded_below(probabilities: Sequence[float], minimum: float) -> tuple[float, ...]:
    """Raise probabilities below the minimum to it, and scale the others so that the sum is 1."""
    excess = [max(0.0, p - minimum) for p in probabilities]
    rest = 1 - minimum * len(probabilities)
    return tuple(minimum + rest * e / math.fsum(excess) for e in excess)
