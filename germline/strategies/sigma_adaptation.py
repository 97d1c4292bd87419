"""The sigma of every generation of `nes`: constant, scheduled, or adapted to the updates so far.

    sigma_g = s_g * f_g         s: the setting `sigma`;  f: 1, or a factor that grows with
                                generations without signal (`zero_signal: grow`)

An adaptive sigma depends on the updates so far and on nothing else, so a strategy that recalls them
has the sigma of a run that never stopped. A `natural` sigma is constant here: the factor of each
tensor is kept with the weights, because it depends on the noise (`spaces.sigma_units`).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from germline.config import (
    Adaptive,
    AutoSigma,
    GrowSigmaOnZeroSignal,
    NaturalGradientSigma,
    Nes,
    PlateauSchedule,
    SuccessRateSigma,
)
from germline.schedules import value_at
from germline.shaping import all_equal
from germline.strategies.adaptive_values import PlateauValue, SuccessRateValue, ZeroSignalGrowth
from germline.strategies.calibrated_sigma import CalibratedSigma
from germline.types import GermlineError, SigmaUpdate, Update

FIRST_GUESS = {"constant": 0.003, "mean_abs": 0.1, "std": 0.1, "rms": 0.1}
"""First sigma of the calibration, by `sigma_unit`; on nano it ends within a factor of 3 of it."""


class SigmaSchedule:
    """Sigma by generation, from the settings of a run and the updates so far.

    Attributes:
        wants_fitness: whether the state of an update needs the mean fitness of its population.
        wants_success: whether it needs the share of members fitter than the center.
    """

    def __init__(self, config: Nes, generations: int) -> None:
        self._setting: Adaptive = config.sigma
        self._generations = generations
        self._plateaus = (
            PlateauValue(self._setting) if isinstance(self._setting, PlateauSchedule) else None
        )
        self._successes = (
            SuccessRateValue(self._setting) if isinstance(self._setting, SuccessRateSigma) else None
        )
        self._calibrated = (
            CalibratedSigma(self._setting, FIRST_GUESS[config.unit])
            if isinstance(self._setting, AutoSigma)
            else None
        )
        grows = config.zero_signal
        self._zero_signal = (
            ZeroSignalGrowth(grows) if isinstance(grows, GrowSigmaOnZeroSignal) else None
        )
        self.wants_fitness = self._plateaus is not None
        self.wants_success = self._successes is not None

    def at(self, generation: int) -> float:
        """Return sigma in a generation.

        Raises:
            GermlineError: it depends on the update of an earlier generation, which is missing.
        """
        followed = self._plateaus or self._successes
        if self._calibrated:
            sigma = self._calibrated.at(generation)
        elif followed:
            sigma = followed.at(generation)
        elif isinstance(self._setting, NaturalGradientSigma):
            sigma = self._setting.start
        else:
            assert not isinstance(self._setting, PlateauSchedule | SuccessRateSigma | AutoSigma)
            sigma = value_at(self._setting, generation, self._generations)
        return sigma * self._zero_signal.at(generation) if self._zero_signal else sigma

    def calibrate(self, generation: int, divergence: Callable[[float], float]) -> None:
        """Choose the sigma of a generation by trials, where it is `auto`."""
        if self._calibrated:
            self._calibrated.calibrate(generation, divergence)

    def update_of(self, shares: list[float]) -> SigmaUpdate | None:
        """Turn the utilities of directions, divided by N, into the update of tensor sigmas.

            s_k = rate / 2 * sum of u_i / N over the members of direction k

        Returns:
            None where tensors have no sigma of their own.
        """
        setting = self._setting
        if not isinstance(setting, NaturalGradientSigma):
            return None
        coefficients = tuple(setting.rate / 2 * share for share in shares)
        return SigmaUpdate(coefficients, setting.min / setting.start, setting.max / setting.start)

    def tell(self, update: Update) -> None:
        """Adapt to the update of the next generation.

        Raises:
            GermlineError: sigma adapts, and it is the update of another generation.
        """
        state = update.strategy_state.read()
        if self._calibrated:
            self._calibrated.tell(update)
        if self._plateaus:
            self._plateaus.tell(update.generation, state.get("fitness"))
        if self._successes:
            self._successes.tell(update.generation, state.get("success"))
        if self._zero_signal:
            self._zero_signal.tell(update.generation, no_signal=update.has_no_signal)


def success_rate(fitness: Float[np.ndarray, "members"], center: float | None) -> float | None:
    """Return the share of members that are fitter than the center; a tie counts half.

    Members without a fitness do not count. None where the center or all members are without one.

    Raises:
        GermlineError: the fitness of the center is not given.
    """
    if center is None:
        raise GermlineError(
            "strategy.sigma.kind=success needs the fitness of the center on the same batch: "
            "strategy.tell(population, utilities, fitness, center)"
        )
    known = fitness[~np.isnan(fitness)]
    if np.isnan(center) or not known.size:
        return None
    points = [0.5 if _are_tied(value, center) else float(value > center) for value in known]
    return sum(points) / len(points)


def _are_tied(value: float, other: float) -> bool:
    return all_equal(np.array([value, other]))
