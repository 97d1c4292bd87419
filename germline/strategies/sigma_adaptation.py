"""The sigma of every generation of `nes`: constant, scheduled, or as the updates so far make it.

    sigma_g = s_g * f_g         s: the setting `sigma`;  f: 1, or the answer to generations
                                without signal (`zero_signal: grow`)

What adapts goes by the updates told so far and by nothing else, so a strategy that recalls them has
the sigma it would have had. A `natural` sigma is constant here: each tensor's own factor lives with
the weights, because it needs the noise (`spaces.sigma_units`).
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
from germline.shaping.ties import all_equal
from germline.strategies.adaptive_values import PlateauValue, SuccessRateValue, ZeroSignalGrowth
from germline.strategies.calibrated_sigma import CalibratedSigma
from germline.types import GermlineError, SigmaUpdate, Update

FIRST_GUESS = {"constant": 0.003, "mean_abs": 0.1, "std": 0.1, "rms": 0.1}
"""Where calibrating sigma starts, by `sigma_unit`; on nano it ends within a factor of 3."""


class SigmaSchedule:
    """Sigma by generation, from the settings of a run and what was told.

    Attributes:
        wants_fitness: whether updates must carry the mean fitness of their population.
        wants_success: whether they must carry the share of members fitter than the center.
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
        self._silence = (
            ZeroSignalGrowth(grows) if isinstance(grows, GrowSigmaOnZeroSignal) else None
        )
        self.wants_fitness = self._plateaus is not None
        self.wants_success = self._successes is not None

    def at(self, generation: int) -> float:
        """Return sigma in a generation.

        Raises:
            GermlineError: it depends on a generation that was not told.
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
        return sigma * self._silence.at(generation) if self._silence else sigma

    def calibrate(self, generation: int, divergence: Callable[[float], float]) -> None:
        """Choose the sigma of a generation by trying, where it is `auto`."""
        if self._calibrated:
            self._calibrated.calibrate(generation, divergence)

    def stretch(self, shares: list[float]) -> SigmaUpdate | None:
        """Turn the utilities of directions, over N, into what moves the sigmas of tensors.

            s_k = rate / 2 * sum of u_i / N over the members of direction k

        Returns:
            None where tensors have no sigma of their own.
        """
        to = self._setting
        if not isinstance(to, NaturalGradientSigma):
            return None
        coefficients = tuple(to.rate / 2 * share for share in shares)
        return SigmaUpdate(coefficients, to.min / to.start, to.max / to.start)

    def tell(self, update: Update) -> None:
        """Take in the update of the next generation.

        Raises:
            GermlineError: it is not the next generation, and sigma adapts.
        """
        if self._calibrated:
            self._calibrated.tell(update)
        if self._plateaus:
            self._plateaus.tell(update.generation, update.fitness)
        if self._successes:
            self._successes.tell(update.generation, update.success_rate)
        if self._silence:
            self._silence.tell(update.generation, silent=update.has_no_signal)


def success_rate(fitness: Float[np.ndarray, "members"], center: float | None) -> float | None:
    """Return the share of members that are fitter than the center; ties count half.

    Members without fitness do not count. None where no member or not the center has one.

    Raises:
        GermlineError: the fitness of the center was not told.
    """
    if center is None:
        raise GermlineError(
            "strategy.sigma.kind=success needs the fitness of the center on the same batch: "
            "strategy.tell(population, utilities, fitness, center)"
        )
    known = fitness[~np.isnan(fitness)]
    if np.isnan(center) or not known.size:
        return None
    points = [0.5 if _ties(one, center) else float(one > center) for one in known.tolist()]
    return sum(points) / len(points)


def _ties(one: float, other: float) -> bool:
    return all_equal(np.array([one, other]))
