"""Sigma calibrated to a KL divergence: members are a chosen divergence from the center.

The effect of a sigma depends on the model, the space, the rank and the dtype; the meaning of a KL
divergence does not. For small sigma the divergence grows with its square, so each trial sets

    (1)  sigma <- sigma sqrt(target / KL(sigma))        rounded to three digits

until (1) changes sigma by less than the factor `CLOSE`. Where the divergence does not grow with the
square of sigma (with two perturbed factors, near the rounding of the weights, or where the texts
are garbage), (1) may give a sigma beyond one that was tried, or near it: then the next trial is the
geometric mean of the largest sigma below the target and the smallest above it; if that mean is near
both, and the divergence above is near the target, it is the result. A sigma above `MOST_SIGMA` is
not tried.

In half precision every perturbed forward pass rounds otherwise, which alone is a divergence a. It
does not shrink with sigma: the effect of a small sigma drowns in it. Where a smaller sigma has a
divergence near the target that is not smaller in proportion, the trials are fitted by

    (2)  KL(sigma) = a + b sigma^2                      relative errors, least squares

and the result is the sigma whose own part b sigma^2 is the target, or a where that is larger.

If members equal the center even there, or have no finite divergence at any sigma, the
run stops with an error.

At that sigma the rewards of members may not differ, or differ by noise alone: a pretrained model
answers otherwise long before it answers better. Until the members have shown a signal once, the
excess f of the power of their differences over its noise (`signal_metrics`, equation 7) is averaged
over the generations of one sigma, with D directions in all:

    (3)  z = sqrt(D / 2) sum_t D_t f_t / D

which has a variance of about 1 where there is no signal. From 32 directions on, z of 2 or more is a
signal, after which sigma stays. Below 0.5, or below 2 with 128 directions or after 4 generations,
sigma grows threefold, up to what (1) gives for `max_kl` after the trial nearest to it. Where
members differ at the larger sigma too, without such a signal, the steps of a measured learning rate
are three times as long from then on. The sigma of a generation is in its update, so a resumed run
continues with it.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from germline.config import AutoSigma
from germline.signal_metrics import effective_directions
from germline.strategies.adaptive_values import AdaptiveValue
from germline.strategies.sigma_rules import SigmaRule
from germline.types import GermlineError, Update

log = logging.getLogger(__name__)

FIRST_GUESS = {"constant": 0.003, "mean_abs": 0.1, "std": 0.1, "rms": 0.1}
"""First sigma of the calibration, by `sigma_unit`; on nano it ends within a factor of 3 of it."""

TRIALS = 8
"""Most trials before generation 0, where nothing is known of the model."""

FARTHEST = 8.0
"""Largest factor by which one trial changes sigma: the square law holds for small sigmas."""

CLOSE = 1.25
"""The calibration ends when equation (1) changes sigma by less than this factor."""

NEAR = 10.0
"""Factor within which divergences on both sides of the target are near it."""

MOST_SIGMA = 10.0
"""Largest sigma that is tried: in any unit, its noise is several times the weights."""

TRACKING = 2.0
"""Largest factor by which a calibration after generation 0 changes sigma."""

SIGNAL, NO_SIGNAL = 2.0, 0.5
"""z of equation (3) from which on there is a signal, and below which there is none."""

FARTHER = 3.0
"""Factor of sigma where its members have shown no signal: nine times their divergence. Where
they differ by noise alone there, too, steps are so many times as long, in sigmas."""

COMPARED, DECIDED, PATIENCE = 32, 128, 4
"""Directions from which on equation (3) may decide; it has decided with so many directions, or
after so many generations, as 16 pairs would take 8 or more for each sigma."""

MOST_GROWTH = "most_growth"
"""Name in `strategy_state` of an update."""


class CalibratedSigma(AdaptiveValue[float], SigmaRule):
    """Sigma by generation: calibrated in some generations, kept in the others."""

    wants_power = True

    def __init__(self, settings: AutoSigma, start: float) -> None:
        """Set the sigma of the first trial."""
        super().__init__("a calibrated sigma", start)
        self._settings = settings
        self._calibrated = False
        self._growth, self._most_growth = 1.0, math.sqrt(settings.most_kl / settings.target_kl)
        self._signal: _Signal | None = _Signal()

    @classmethod
    def from_config(cls, settings: Any, generations: int, unit: str) -> "CalibratedSigma":
        """Begin at the first guess of the unit."""
        return cls(settings, FIRST_GUESS[unit])

    def at(self, generation: int) -> float:
        """Return the sigma of the members of a generation."""
        if not self._calibrated:
            raise GermlineError(
                "strategy.sigma=auto is calibrated before generation 0: call "
                "strategy.calibrate(0, divergence) first, or give strategy.sigma as a number, such "
                "as 0.005"
            )
        return _rounded(super().at(generation) * self._growth, digits=5)

    def calibrate(self, generation: int, divergence: Callable[[float], float]) -> None:
        """Calibrate sigma in generation 0 and after every `every` generations."""
        every = self._settings.every
        if generation and not (every and generation % every == 0):
            return
        trials, largest = (1, TRACKING) if generation else (TRIALS, FARTHEST)
        sigma = super().at(generation)
        search = _Search(self._settings.target_kl, largest)
        for _ in range(trials):
            factor = search.after(sigma, divergence(sigma))
            sigma = _rounded(sigma * factor)
            if is_close(factor) or search.floor is not None:
                break
        if not generation:
            search.check(sigma)
            farthest = search.sigma_of(self._settings.most_kl) or sigma * self._most_growth
            self._most_growth = max(1.0, _rounded(farthest / sigma))
        self.replace(generation, sigma)
        self._calibrated = True

    def state(self) -> dict[str, float]:
        """Return the largest factor of sigma, which the trials showed."""
        return {MOST_GROWTH: self._most_growth}

    def tell(self, update: Update) -> None:
        """Adapt to the update of the next generation; its sigma is the one of that generation."""
        self._most_growth = update.strategy_state.get(MOST_GROWTH, self._most_growth)
        sigma = _rounded(update.sigma / self._growth)
        self._look_farther(update)
        self.replace(update.generation, sigma)  # a resumed run did not calibrate this generation
        self.follow(update.generation, sigma)
        self._calibrated = True

    def _look_farther(self, update: Update) -> None:
        """Grow where the generations of this sigma have shown no signal, until they show one."""
        excess = update.strategy_state.get("power", {}).get("excess")
        if excess is None and update.has_no_signal:
            excess = 0.0
        if self._signal is None or excess is None or not update.coefficients:
            return  # randopt has no coefficients
        found = self._signal.after(excess, update.coefficients)
        if found:
            self._signal = None
        elif found is not None:
            if self._growth > 1 and self._signal.differed:
                self.lengthening = FARTHER
            self._growth = min(self._growth * FARTHER, self._most_growth)
            self._signal = _Signal()


def is_close(factor: float) -> bool:
    """Say whether a factor of equation (1) is so near 1 that the calibration ends."""
    return 1 / CLOSE < factor < CLOSE


class _Signal:
    """The signal of the generations of one sigma: equation (3).

    Attributes:
        differed: whether members did not all tie.
    """

    def __init__(self) -> None:
        self.differed = False
        self._directions = self._excess = 0.0
        self._generations = 0

    def after(self, excess: float, coefficients: Sequence[float]) -> bool | None:
        """Say whether there is a signal after one more generation; None if it is not known yet.

        K directions with Gaussian coefficients count as K / 3 effective ones, and those that tie,
        as K.
        """
        effective = effective_directions(coefficients)
        count = len(coefficients)
        self.differed |= effective is not None
        directions = float(count) if effective is None else min(3 * effective, count)
        self._directions += directions
        self._excess += directions * excess
        self._generations += 1
        z = self._excess / math.sqrt(2 * self._directions)
        if self._directions < COMPARED:
            return None
        if z >= SIGNAL:
            return True
        is_early = self._directions < DECIDED and self._generations < PATIENCE
        return None if z >= NO_SIGNAL and is_early else False


class _Search:
    """The trials so far; computes the sigma of the next one.

    Attributes:
        floor: the divergence by rounding alone, once trials show one.
    """

    def __init__(self, target: float, farthest: float) -> None:
        self.floor: float | None = None
        self._target = target
        self._farthest = farthest
        self._trials: list[tuple[float, float]] = []
        self._below, self._above = 0.0, math.inf

    def after(self, sigma: float, kl: float) -> float:
        """Return the factor of sigma after a trial: equation (1), bounded by the earlier trials."""
        self._trials.append((sigma, kl))
        if kl < self._target:
            self._below = max(self._below, sigma)
        else:  # NaN too
            self._above = min(self._above, sigma)
        if self._is_at_floor():
            self.floor, slope = fit_floor(self._trials)
            return math.sqrt(max(self._target, self.floor) / slope) / sigma
        factor = min(self._factor(kl), max(MOST_SIGMA / sigma, 1.0))
        enclosed = 0 < self._below < self._above < math.inf
        is_new = self._below * CLOSE < sigma * factor < self._above / CLOSE
        if enclosed and not (is_close(factor) or is_new):
            middle = math.sqrt(self._below * self._above) / sigma
            if not is_close(middle) or self._is_enclosed():
                return middle
            # No sigma is left between the two, and the divergence of one of them is far from the
            # target: that of the other one was due to chance.
            low, high = (sigma, math.inf) if kl < self._target else (0.0, sigma)
            self._below, self._above = low, high
        return factor

    def sigma_of(self, kl: float) -> float | None:
        """Return what equation (1) gives for another target after the trial nearest to it."""
        known = [one for one in self._trials if 0 < one[1] < math.inf]
        nearest = min(known, key=lambda one: abs(math.log(one[1] / kl)), default=None)
        return nearest and nearest[0] * math.sqrt(kl / nearest[1])

    def check(self, chosen: float) -> None:
        """Warn where no trial was close to the target; refuse a KL that is 0, or never finite."""
        sigma, kl = self._trials[-1]
        if self.floor is not None or is_close(self._factor(kl)) or self._is_enclosed():
            return
        divergences = [kl for _, kl in self._trials]
        tried = f"sigma {self._trials[0][0]:g} to {sigma:g}"
        if all(kl <= 0 for kl in divergences):
            raise GermlineError(
                "strategy.sigma=auto: members give the center's answers the same probability as "
                f"the center (KL 0 or below at {tried}), so the searched tensors do not change "
                "what the model writes: check space.include, space.exclude and space.layers, or "
                "give strategy.sigma as a number, such as 0.1"
            )
        if not any(math.isfinite(kl) for kl in divergences):
            raise GermlineError(
                f"strategy.sigma=auto: no member gives the center's answers a finite probability "
                f"({tried}): check that the model works (`germline generate`), use "
                "engine.dtype=float32, or give strategy.sigma as a number, such as 0.1"
            )
        log.warning(
            "strategy.sigma=auto: %d trials found no sigma with a KL near the target of %g per "
            "token: the run begins with sigma %g; to use another one, give strategy.sigma as a "
            "number",
            *(len(self._trials), self._target, chosen),
        )

    def _is_at_floor(self) -> bool:
        """Say whether the last sigma shrank, and its divergence did not in proportion."""
        sigma, kl = self._trials[-1]
        larger = [one for one in self._trials[:-1] if one[0] > sigma and math.isfinite(one[1])]
        if not larger or not self._target < kl < NEAR * self._target:
            return False
        next_sigma, next_kl = min(larger)
        return kl / next_kl > sigma / next_sigma

    def _is_enclosed(self) -> bool:
        """Say whether two sigmas near each other enclose the target; the KL above must be near it.

        The KL below may be 0 or less by chance, where few tokens were compared.
        """
        high = dict(self._trials).get(self._above, math.inf)
        near = self._below > 0 and is_close(math.sqrt(self._above / self._below))
        return near and high < NEAR * self._target

    def _factor(self, kl: float) -> float:
        """Return the factor of equation (1), limited to that of one trial."""
        if math.isnan(kl) or kl == math.inf:
            return 1 / self._farthest  # sigma is so large that members write garbage
        if kl <= 0:
            return self._farthest  # sigma is so small that members equal the center
        return min(max(math.sqrt(self._target / kl), 1 / self._farthest), self._farthest)


def fit_floor(trials: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b of equation (2), given sigmas and their divergences; a is 0 or more."""
    sigmas, kls = np.array([one for one in trials if 0 < one[1] < math.inf]).T
    (a, b), *_ = np.linalg.lstsq(np.stack([1 / kls, sigmas**2 / kls], axis=1), np.ones(len(kls)))
    return (float(a), float(b)) if a > 0 and b > 0 else (0.0, float(np.median(kls / sigmas**2)))


def _rounded(sigma: float, digits: int = 3) -> float:
    """Round to three digits: the estimate from a few members is not more accurate."""
    return float(f"{sigma:.{digits}g}")
