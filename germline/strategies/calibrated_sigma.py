"""A sigma in units of behavior: members stay a chosen KL divergence from the center.

What a sigma does depends on the model, the space, the rank and the dtype; what a KL divergence
means does not. For small sigma the divergence grows with its square, so each trial moves it by

    (1)  sigma <- sigma sqrt(target / KL(sigma))        rounded to three digits

until the trial was close. Where the divergence does not follow the square of sigma, as between
rounding and garbage, (1) may ask for a sigma beyond one that was tried: then the next trial is the
geometric mean of the largest sigma below the target and the smallest above it. A sigma above
`MOST_SIGMA` is not tried; members that cannot be told from the center there, or that are no models
at any sigma, end the run with an error.

Rewards may be too coarse for that: after a generation in which less than
a tenth of the directions told anything, the sigma that is played grows by half, up to the square
root of max_kl / target times; it shrinks back after each one in which three tenths did.

The value of a generation is in its update, so a resumed run continues with it.
"""

import logging
import math
from collections.abc import Callable

from germline.config import AutoSigma
from germline.strategies.adaptive_values import AdaptiveValue
from germline.types import GermlineError, Update

log = logging.getLogger(__name__)

TRIALS = 8
"""Most trials at the start, where nothing is known of the model."""

FARTHEST = 8.0
"""One trial changes sigma by no more than this factor: the square law holds for small sigmas."""

CLOSE = 1.25
"""A trial that asks for less than this factor ends the search."""

MOST_SIGMA = 10.0
"""No sigma above this is tried: in any unit, the noise would be several times the weights."""

TRACKING = 2.0
"""A later calibration changes sigma by no more than this factor."""

GROWTH = 1.5
"""Factor of sigma after a generation in which few directions told anything."""

FEW, ENOUGH = 0.1, 0.3
"""Shares of the directions with a coefficient: below the first sigma grows, from the second it
shrinks back."""


class CalibratedSigma(AdaptiveValue[float]):
    """Sigma by generation: calibrated where it is due, kept between."""

    def __init__(self, settings: AutoSigma, start: float) -> None:
        """Begin with a first guess, from which calibration starts."""
        super().__init__("a calibrated sigma", start)
        self._settings = settings
        self._calibrated = False
        self._steps = 0  # of growth
        ratio = math.sqrt(settings.max_kl / settings.target_kl)
        self._most_steps = math.floor(math.log(ratio) / math.log(GROWTH))

    def at(self, generation: int) -> float:
        """Return the sigma that members play with in a generation.

        Raises:
            GermlineError: it was not calibrated, or depends on a generation that was not told.
        """
        if not self._calibrated:
            raise GermlineError(
                "strategy.sigma=auto is calibrated before generation 0: call "
                "strategy.calibrate(0, divergence) first, or give strategy.sigma as a number, such "
                "as 0.005"
            )
        return _rounded(super().at(generation) * self._growth, digits=5)

    def calibrate(self, generation: int, divergence: Callable[[float], float]) -> None:
        """Choose the sigma of a generation where that is due; trials are at most `TRIALS`.

        Args:
            generation: the next one.
            divergence: of members at a sigma from the center, in nats per token.
        """
        every = self._settings.every
        if generation and not (every and generation % every == 0):
            return
        trials, farthest = (1, TRACKING) if generation else (TRIALS, FARTHEST)
        sigma = super().at(generation)
        search = _Search(self._settings.target_kl, farthest)
        for _ in range(trials):
            factor = search.after(sigma, divergence(sigma))
            sigma = _rounded(sigma * factor)
            if is_close(factor):
                break
        if not generation:
            search.check()
        self.replace(generation, sigma)
        self._calibrated = True

    def tell(self, update: Update) -> None:
        """Take in the update of the next generation, which says what sigma it was played with."""
        sigma = _rounded(update.sigma / self._growth)
        if update.coefficients:  # RandOpt has none: its members say nothing of directions
            told = sum(one != 0 for one in update.coefficients) / len(update.coefficients)
            if told < FEW:
                self._steps = min(self._steps + 1, self._most_steps)
            elif told >= ENOUGH:
                self._steps = max(self._steps - 1, 0)
        self.replace(update.generation, sigma)  # not known yet where a run is taken up
        self.follow(update.generation, sigma)
        self._calibrated = True

    @property
    def _growth(self) -> float:
        return float(GROWTH**self._steps)


def is_close(factor: float) -> bool:
    """Say whether a trial asked for so little that it was close enough."""
    return 1 / CLOSE < factor < CLOSE


class _Search:
    """Trials so far, and the sigma to try next."""

    def __init__(self, target: float, farthest: float) -> None:
        self._target = target
        self._farthest = farthest
        self._trials: list[tuple[float, float]] = []
        self._below, self._above = 0.0, math.inf

    def after(self, sigma: float, kl: float) -> float:
        """Return by how much to change sigma after a trial: equation (1), within what was tried."""
        self._trials.append((sigma, kl))
        if kl < self._target:
            self._below = max(self._below, sigma)
        else:  # NaN too
            self._above = min(self._above, sigma)
        factor = min(self._factor(kl), max(MOST_SIGMA / sigma, 1.0))
        enclosed = 0 < self._below < self._above < math.inf
        if enclosed and not (is_close(factor) or self._below < sigma * factor < self._above):
            middle = math.sqrt(self._below * self._above) / sigma
            if not is_close(middle):
                return middle
            # Nothing is left between them, and this is still wrong: the other end was chance.
            low, high = (sigma, math.inf) if kl < self._target else (0.0, sigma)
            self._below, self._above = low, high
        return factor

    def check(self) -> None:
        """Say what is wrong where the last trial was not close to the target.

        Raises:
            GermlineError: no trial told members from the center, or none was a model.
        """
        sigma, kl = self._trials[-1]
        if is_close(self._factor(kl)):
            return
        divergences = [kl for _, kl in self._trials]
        tried = f"sigma {self._trials[0][0]:g} to {sigma:g}"
        if all(one <= 0 for one in divergences):
            raise GermlineError(
                f"strategy.sigma=auto: members find the center's answers as likely as the center "
                f"itself does (KL 0 or below at {tried}), so what is searched does not change what "
                "the model writes: look at space.include, space.exclude and space.layers, or give "
                "strategy.sigma as a number, such as 0.1"
            )
        if not any(math.isfinite(one) for one in divergences):
            raise GermlineError(
                f"strategy.sigma=auto: no member gives the center's answers a finite probability "
                f"({tried}): see whether the model works (`germline generate`), use "
                "engine.dtype=float32, or give strategy.sigma as a number, such as 0.1"
            )
        log.warning(
            "strategy.sigma=auto: after %d trials KL is %.2g per token at sigma %g, and %.2g is "
            "wanted. The run goes on near there; a number as strategy.sigma chooses another sigma",
            *(len(self._trials), kl, sigma, self._target),
        )

    def _factor(self, kl: float) -> float:
        """Return by how much one trial asks sigma to change: equation (1), limited."""
        if math.isnan(kl) or kl == math.inf:
            return 1 / self._farthest  # members that are no models any more
        if kl <= 0:
            return self._farthest  # too near to the center to be told apart from it
        return min(max(math.sqrt(self._target / kl), 1 / self._farthest), self._farthest)


def _rounded(sigma: float, digits: int = 3) -> float:
    """Keep three digits: more would claim what a few members cannot show."""
    return float(f"{sigma:.{digits}g}")
