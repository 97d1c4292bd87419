"""A categorical part of theta: which prompt, which temperature, how many solved examples.

Beside the weights, another strategy's business, every discrete setting d has a probability p_dk for
each of its options k, all equal at first. A member plays with one option of each, drawn by them; an
antithetic pair draws together, so that its difference is that of the weights alone. With the
utilities u_i that the other strategy is told, and o_i the option of member i as ones and zeros,

    (1)  p_d <- p_d + rate / N * sum_i u_i (o_i - p_d)
    (2)  p_d <- max(p_d, floor), what that adds being taken from the others in proportion to what
                they have above the floor

(1) is the natural gradient of expected utility in the probabilities of a categorical distribution
(Shirakawa et al. 2018, arXiv 1801.07650, with the 1/N of `nes`, so that the rate does not depend on
the population). The settings are independent of each other: a combination that is only good as one
is found where each half is better on average.

Deviations: the rate is constant; the ASNG of Akimoto et al. 2019 (arXiv 1905.08537) adapts it.

Limits: an option's effect adds to the spread of fitness, so z-scores shrink what the weights learn
while options differ much. Utilities of mean zero are taken for granted; missing members have 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from germline import noise
from germline.config import PromptSearch
from germline.protocols import CalibratedStrategy, Strategy
from germline.signal_types import SignalPower
from germline.strategies.adaptive_values import AdaptiveValue
from germline.types import (
    GermlineError,
    MeanUpdate,
    Perturbation,
    Population,
    PromptVariant,
    Update,
)

Probabilities = tuple[tuple[float, ...], ...]
"""Probability of every option, setting by setting."""

STREAMS = {"few_shot": "shots"}
"""Names of noise streams where they differ from the setting: frozen, or old runs would change."""


class CategoricalSearch:
    """Asks another strategy for members, and draws what each of them plays with."""

    def __init__(self, config: PromptSearch, inner: Strategy, run_seed: int) -> None:
        self.config = config
        self.inner = inner
        self.run_seed = run_seed
        equal = tuple((1 / len(one),) * len(one) for one in config.options.values())
        self._probabilities: AdaptiveValue[Probabilities] = AdaptiveValue(
            "the prompt options", equal
        )

    @property
    def probabilities(self) -> Probabilities:
        """How likely every option is now."""
        return self._probabilities.newest

    def likeliest(self) -> PromptVariant:
        """Return the most likely option of each setting, the first of equals: the center's."""
        return self._choice(
            [probabilities.index(max(probabilities)) for probabilities in self.probabilities]
        )

    def calibrate(
        self, generation: int, divergence: Callable[[Sequence[Perturbation]], float]
    ) -> None:
        """Let the other strategy choose its sigma."""
        if isinstance(self.inner, CalibratedStrategy):
            self.inner.calibrate(generation, divergence)

    def ask(self, generation: int) -> Population:
        """Name the members, and what each plays with."""
        population = self.inner.ask(generation)
        return replace(
            population, prompt_variants=tuple(self._choice(one) for one in self._drawn(population))
        )

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update:
        """Let the other strategy learn about the weights, and move the odds: equations (1), (2).

        Raises:
            GermlineError: the other strategy returns no update that can hold odds.
        """
        update = self.inner.tell(population, utilities, fitness, center, power)
        if isinstance(update, MeanUpdate):
            raise GermlineError("prompt_search can be used beside strategy.kind=nes only")
        drawn = self._drawn(population)
        probabilities = tuple(
            self._moved(before, [one[place] for one in drawn], utilities.tolist())
            for place, before in enumerate(self._probabilities.at(population.generation))
        )
        self._probabilities.follow(population.generation, probabilities)
        return replace(update, option_probabilities=probabilities)

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Be shown the updates of the generations before, when a stopped run is taken up."""
        self.inner.recall(updates)
        for update in updates:
            if isinstance(update, Update):
                self._probabilities.follow(update.generation, update.option_probabilities)
        return updates

    def _drawn(self, population: Population) -> list[tuple[int, ...]]:
        """Return for each member the place of its option in every setting."""
        generation, together = population.generation, 2 if population.antithetic else 1
        draws = range(len(population) // together)
        by_setting = []
        for name, probabilities in zip(
            self.config.options, self._probabilities.at(generation), strict=True
        ):
            sampling_noise = noise.sampling_uniforms(
                self.run_seed, generation, f"choice of {STREAMS.get(name, name)}", draws, 1
            )[:, 0]
            by_setting.append([_place(probabilities, float(one)) for one in sampling_noise])
        return [places for places in zip(*by_setting, strict=True) for _ in range(together)]

    def _choice(self, places: Sequence[int]) -> PromptVariant:
        config = self.config
        place = dict(zip(config.options, places, strict=True))
        return PromptVariant(
            temperature=config.temperature[place["temperature"]] if config.temperature else None,
            few_shot=config.few_shot[place["few_shot"]] if config.few_shot else None,
            template=config.template[place["template"]] if config.template else None,
        )

    def _moved(
        self, probabilities: Sequence[float], options: Sequence[int], utilities: Sequence[float]
    ) -> tuple[float, ...]:
        told = list(zip(utilities, options, strict=True))
        rate = self.config.learning_rate / len(told)
        moved = [
            p + rate * math.fsum(u * ((k == place) - p) for u, k in told)
            for place, p in enumerate(probabilities)
        ]
        return _floored(moved, self.config.min_probability)


def _place(probabilities: Sequence[float], sampling_noise: float) -> int:
    """Find the option in whose share of the unit interval the luck falls."""
    reached = 0.0
    for place, one in enumerate(probabilities):
        reached += one
        if sampling_noise < reached:
            return place
    return len(probabilities) - 1


def _floored(probabilities: Sequence[float], floor: float) -> tuple[float, ...]:
    """Lift what is below the floor, and scale what is above it so that the sum is 1 again."""
    above = [max(0.0, one - floor) for one in probabilities]
    spare = 1 - floor * len(probabilities)
    return tuple(floor + spare * one / math.fsum(above) for one in above)
