"""Values that adapt to the run, generation by generation.

A value is computed from the one before it and from a result of the generation between them, so the
same results give the same values, which is what resume relies on.

**The learning rate follows the measured signal**: steps are long while the signal is strong. With r
the share of signal in the power of the members' differences (`signal_metrics.signal_power`),
averaged over recent generations, K the effective number of directions (`signal_metrics`, equation
5) and the coefficients c of the update,

    (1)  r     = max(0, sum_t w_t (total_t - noise_t) / sum_t w_t total_t),   w_t = memory^(T - t)
    (2)  step  = max(min(max_step, step_1 r sqrt(K)), least_step / sqrt(t + 1))      rms, in sigmas
    (3)  rate  = step sigma / |c|

Why: near theta, let fitness be quadratic with gradient g and Hessian H. Along K random directions
of a space with many more dimensions, an update of rms rho sigma gains about rho r sqrt(K) s, where
s is the rms of the members' differences, and loses rho^2 sigma^2 |tr H| / 2 to curvature in all
directions of its noise. The best rho is therefore proportional to r sqrt(K): the shrunk estimate of
Wiener (1949) instead of a z-score, whose length is the same when the members differ by noise alone.
A signal that is smaller than the error of r is searched with the least step: its square decreases
as 1 / t, so a random walk of such steps grows with the logarithm of the number of generations.
`docs/methods.md` has the assumptions; the constants were chosen on the nano model.

Known limits: r includes the noise of examples and sampling, not that of the choice of directions.
A signal that is much smaller than the noise of `1 / (1 - memory)` generations is not detected.
"""

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from germline.config import AutoLearningRate, RunningMeanBaseline
from germline.signal_metrics import effective_directions
from germline.types import GermlineError, SignalPower

T = TypeVar("T")

JUMP = 1e4
"""Ratio of powers from which on rewards have another scale: averaging restarts."""

SIGMA_JUMP = 2.0
"""Ratio of sigmas above which members have another signal: averaging restarts."""


class AdaptiveValue(Generic[T]):
    """The values of generations 0, 1, ... up to the next one."""

    def __init__(self, name: str, start: T) -> None:
        self._name = name
        self._values = [start]

    @property
    def newest(self) -> T:
        """The value of the next generation."""
        return self._values[-1]

    def at(self, generation: int) -> T:
        """Return the value in a generation, the next one at most."""
        if not 0 <= generation < len(self._values):
            raise GermlineError(
                f"the value of {self._name} in generation {generation} depends on the "
                f"generations before it, and strategy.tell was called for {len(self._values) - 1} "
                "of them. Ask and tell generation after generation; to continue a stopped run, "
                "call strategy.recall(updates)"
            )
        return self._values[generation]

    def replace(self, generation: int, value: T) -> None:
        """Set the value of the next generation."""
        self._check_is_next(generation)
        self._values[-1] = value

    def follow(self, generation: int, value: T) -> None:
        """Add the value of the generation after `generation`, which is the next one."""
        self._check_is_next(generation)
        self._values.append(value)

    def _check_is_next(self, generation: int) -> None:
        if generation != len(self._values) - 1:
            raise GermlineError(
                f"{self._name} adapts to generation {len(self._values) - 1} next, found "
                f"generation {generation}: tell each generation once, in order"
            )


class RunningMeanFitness(AdaptiveValue[float | None]):
    """A running mean of the fitness of earlier generations; None before the first one.

    b <- decay b + (1 - decay) mean F          b is mean F after the first generation
    """

    def __init__(self, settings: RunningMeanBaseline) -> None:
        super().__init__("a running baseline", None)
        self._decay = settings.decay

    def tell(self, generation: int, fitness: float | None) -> None:
        """Adapt to the mean fitness of the next generation; None (all missing) changes nothing."""
        before = self.newest
        if before is None or fitness is None:
            self.follow(generation, before if fitness is None else fitness)
        else:
            self.follow(generation, self._decay * before + (1 - self._decay) * fitness)


class SignalLearningRate:
    """The signal of recent generations, and the learning rate computed from it."""

    def __init__(self, settings: AutoLearningRate) -> None:
        self._settings = settings
        self._signal = 0.0
        self._total = 0.0
        self._sigma = 0.0

    def tell(self, sigma: float, power: SignalPower | None) -> None:
        """Include the powers of the next generation; None and 0 change nothing."""
        self._signal, self._total, self._sigma = self._after(sigma, power)

    def of(
        self,
        generation: int,
        sigma: float,
        coefficients: Sequence[float],
        power: SignalPower | None,
    ) -> float:
        """Return the learning rate of an update: equations (1) to (3); 0 if coefficients are 0.

        The power of its generation is included in the signal here, and kept by `tell` later.
        """
        length = math.sqrt(math.fsum(c * c for c in coefficients))
        if length == 0:
            return 0.0
        signal, total, _ = self._after(sigma, power)
        share = max(0.0, signal / total) if total > 0 else 0.0
        settings, directions = self._settings, effective_directions(coefficients) or 0
        step = min(settings.max_step, settings.step * share * math.sqrt(directions))
        least = settings.least_step / math.sqrt(generation + 1)
        return max(step, least) * sigma / length

    def _after(self, sigma: float, power: SignalPower | None) -> tuple[float, float, float]:
        """Return weighted sums of signal and total power, with one more generation, and its sigma.

        A generation without power leaves all three as they are.
        """
        if power is None or not power.total > 0:
            return self._signal, self._total, self._sigma
        signal, total, keep = self._signal, self._total, self._settings.memory
        if not total / JUMP < power.total < total * JUMP or sigma > SIGMA_JUMP * self._sigma:
            keep = 0.0
        return (keep * signal + power.total - power.noise, keep * total + power.total, sigma)
