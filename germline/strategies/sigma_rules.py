"""The rules that give `nes` the sigma of every generation: one class each.

    sigma_g = s_g * f_g         s: the rule of the setting `sigma`;  f: 1, or a factor that grows
                                with generations without signal (`zero_signal: grow`)

A rule depends on the updates so far and on nothing else, so a strategy that recalls them has the
sigma of a run that never stopped. `calibrated_sigma` has the rule `auto`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from germline import registry
from germline.config import (
    CosineSchedule,
    GrowSigmaOnZeroSignal,
    KindSection,
    LinearSchedule,
    NaturalGradientSigma,
    Nes,
    PlateauSchedule,
    Scheduled,
    SuccessRateSigma,
)
from germline.config.schedules import scale_within
from germline.shaping import all_equal
from germline.strategies.adaptive_values import AdaptiveValue
from germline.types import GermlineError, SigmaUpdate, Update


class SigmaRule(ABC):
    """Gives the sigma of every generation.

    Attributes:
        wants_fitness: whether the state of an update needs the mean fitness of its population.
        wants_success: whether it needs the share of members fitter than the center.
        wants_power: whether it needs the power of the signal.
        lengthening: factor of steps whose length is measured.
    """

    wants_fitness: bool = False
    wants_success: bool = False
    wants_power: bool = False
    lengthening: float = 1.0

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @classmethod
    def from_config(cls, settings: Any, generations: int, unit: str) -> "SigmaRule":
        """Construct the rule from its section, the length of the run and `strategy.sigma_unit`."""
        return cls(settings)

    @abstractmethod
    def at(self, generation: int) -> float:
        """Return sigma in a generation, after the updates of those before it."""

    def calibrate(  # noqa: B027 - most rules are not calibrated
        self, generation: int, divergence: Callable[[float], float]
    ) -> None:
        """Choose the sigma of a generation by trials.

        Args:
            generation: the next one.
            divergence: KL divergence of members of a sigma from the center, in nats per token.
        """

    def update_of(self, shares: list[float]) -> SigmaUpdate | None:
        """Turn utilities of directions, divided by N, into the update of tensor sigmas, if any."""
        return None

    def state(self) -> dict[str, float]:
        """Return what the updates keep of a calibration."""
        return {}

    def tell(self, update: Update) -> None:  # noqa: B027 - schedules do not adapt
        """Adapt to the update of the next generation."""


def make_sigma_rule(config: Nes, generations: int) -> SigmaRule:
    """Construct the rule that `strategy.sigma` names; a number is a constant schedule."""
    setting = config.sigma
    if not isinstance(setting, KindSection):
        return ScheduledSigma(setting, generations)
    rule: SigmaRule = registry.create("sigma", setting, generations, config.unit)
    return rule


def value_at(value: Scheduled, generation: int, generations: int) -> float:
    """Return a setting's value in generation g of a run of G.

        constant    value
        linear      start (1 - d) + end d                       d = g / (G - 1)
        cosine      start c + end (1 - c)                       c = (1 + cos(pi d)) / 2
                    with d = (g - warmup) / (G - 1 - warmup), and before that, for g < warmup:
                    start (g + 1) / (warmup + 1)

    So it is exactly `start` in generation 0 (with warmup: in generation `warmup`) and exactly `end`
    in the last; a run of one generation gets `start`. Source of the cosine: Loshchilov and Hutter
    (2017, arXiv 1608.03983), equation 5, without restarts.

    Args:
        value: a number or a schedule.
        generation: 0 to generations - 1.
        generations: length of the whole run, so making a run longer moves a schedule.
    """
    if isinstance(value, LinearSchedule):
        done = generation / (generations - 1) if generations > 1 else 0.0
        return value.start * (1 - done) + value.end * done
    if isinstance(value, CosineSchedule):
        since, span = generation - value.warmup, generations - 1 - value.warmup
        if since < 0:
            return value.start * (generation + 1) / (value.warmup + 1)
        share = (1 + math.cos(math.pi * since / span)) / 2 if span > 0 else 1.0
        return value.start * share + value.end * (1 - share)
    return float(value)


class ScheduledSigma(SigmaRule):
    """A constant sigma, or one that follows a schedule over the run."""

    def __init__(self, settings: Scheduled, generations: int) -> None:
        super().__init__(settings)
        self._generations = generations

    @classmethod
    def from_config(cls, settings: Any, generations: int, unit: str) -> "ScheduledSigma":
        """Construct the schedule of a run of so many generations."""
        return cls(settings, generations)

    def at(self, generation: int) -> float:
        """Return the value of the schedule."""
        return value_at(self.settings, generation, self._generations)


class PlateauSigma(AdaptiveValue[float], SigmaRule):
    """A sigma that decreases each time fitness has stopped increasing.

    After `patience` consecutive generations whose mean fitness is not above that of all earlier
    generations, value <- max(min, factor value), and the count restarts. Mean fitness also varies
    with the batch, so a small batch needs a larger patience.
    """

    wants_fitness = True

    def __init__(self, settings: PlateauSchedule) -> None:
        super().__init__("a plateau schedule", settings.start)
        self._settings = settings
        self._best = -math.inf
        self._waited = 0

    def tell(self, update: Update) -> None:
        """Adapt to the mean fitness of the next generation; a missing one changes nothing."""
        fitness = update.strategy_state.get("fitness")
        value, waited = self.newest, self._waited
        if fitness is not None:
            waited = 0 if fitness > self._best else waited + 1
        if waited == self._settings.patience:
            value, waited = max(self._settings.min, self._settings.factor * value), 0
        self.follow(update.generation, value)
        self._waited = waited
        self._best = self._best if fitness is None else max(self._best, fitness)


class SuccessSigma(AdaptiveValue[float], SigmaRule):
    """A sigma that increases while many members are fitter than the center, and else decreases.

        value <- value * exp(rate * (share - target)), cut to [min, max]

    Source: the 1/5 success rule of Rechenberg (1973), with the share of a whole population in the
    place of one success or failure.
    """

    wants_success = True

    def __init__(self, settings: SuccessRateSigma) -> None:
        super().__init__("a sigma that follows the success rate", settings.start)
        self._settings = settings

    def tell(self, update: Update) -> None:
        """Adapt to the share of fitter members; a missing one changes nothing."""
        settings, share = self._settings, update.strategy_state.get("success")
        step = 0.0 if share is None else settings.rate * (share - settings.target)
        self.follow(update.generation, scale_within(self.newest, step, settings.min, settings.max))


class NaturalSigma(SigmaRule):
    """A sigma of each tensor, kept with the weights because it depends on the noise.

    `spaces.sigma_units` has the equations. The sigma of the members is constant.
    """

    settings: NaturalGradientSigma

    def at(self, generation: int) -> float:
        """Return the start, whatever the generation."""
        return self.settings.start

    def update_of(self, shares: list[float]) -> SigmaUpdate:
        """Return s_k = rate / 2 * sum of u_i / N over the members of direction k."""
        setting = self.settings
        coefficients = tuple(setting.rate / 2 * share for share in shares)
        return SigmaUpdate(coefficients, setting.min / setting.start, setting.max / setting.start)


class ZeroSignalGrowth(AdaptiveValue[float]):
    """A factor that grows after each generation without signal, and shrinks after each other one.

    factor <- min(most, step * factor)   after a generation without signal
    factor <- max(1, factor / step)      after a generation with signal
    """

    def __init__(self, settings: GrowSigmaOnZeroSignal) -> None:
        super().__init__("a sigma that grows without signal", 1.0)
        self._settings = settings

    def tell(self, generation: int, *, no_signal: bool) -> None:
        """Adapt to whether the next generation was without signal."""
        step, most = self._settings.factor, self._settings.most
        factor = min(most, self.newest * step) if no_signal else max(1.0, self.newest / step)
        self.follow(generation, factor)


def success_rate(fitness: Float[np.ndarray, "members"], center: float | None) -> float | None:
    """Return the share of members that are fitter than the center; a tie counts half.

    Members without a fitness do not count. None where the center or all members are without one.
    """
    if center is None:
        raise GermlineError(
            "strategy.sigma.kind=success needs the fitness of the center on the same batch: "
            "strategy.tell(population, utilities, fitness, center)"
        )
    known = fitness[~np.isnan(fitness)]
    if np.isnan(center) or not known.size:
        return None
    points = [
        0.5 if all_equal(np.array([value, center])) else float(value > center) for value in known
    ]
    return sum(points) / len(points)
