"""A learning rate that follows the measured signal: long steps while members differ for a reason.

With r the share of the power of the members' differences that is signal (`diagnosis.signal_power`),
averaged over recent generations, K the effective number of directions (`diagnosis`, equation 7) and
the coefficients c of the update,

    (1)  r     = max(0, sum_t w_t (total_t - noise_t) / sum_t w_t total_t),   w_t = memory^(T - t)
    (2)  step  = max(min(max_step, step_1 r sqrt(K)), least_step / sqrt(t + 1))      rms, in sigmas
    (3)  rate  = step sigma / |c|

Why: near theta, let fitness be quadratic with gradient g and Hessian H. Along K random directions
of a space with many more dimensions, an update of rms rho sigma gains about rho r sqrt(K) s, where
s is the rms of the members' differences, and loses rho^2 sigma^2 |tr H| / 2 to curvature in all the
directions it moves along by chance. The best rho is therefore proportional to r sqrt(K): the shrunk
estimate of Wiener (1949) in the place of a z-score, which is as long when nothing but chance
separates the members. What r cannot show, as it is smaller than its own error, is searched by the
least step: its square falls as 1 / t, so a random walk of such steps grows with the logarithm of
the generations and not with their number, whatever that will be. `docs/methods.md` has the
assumptions; the constants were chosen on the nano model.

Known limits: the noise in r is that of examples and sampling, not that of the choice of directions.
A signal that is much smaller than the noise of `1 / (1 - memory)` generations is not seen.
"""

import math
from collections.abc import Sequence

from germline.config import AutoLearningRate
from germline.signal_metrics import effective_directions
from germline.signal_types import SignalPower

JUMP = 1e4
"""A power so many times another is of another scale of rewards: averaging begins anew."""


class SignalLearningRate:
    """The signal of recent generations, and the learning rate that goes with it.

    It follows from the powers it was shown, in order, and from nothing else, so showing them again
    gives the same rates: that is how a resumed run finds its way back.
    """

    def __init__(self, settings: AutoLearningRate) -> None:
        self._settings = settings
        self._signal = 0.0
        self._total = 0.0

    def tell(self, power: SignalPower | None) -> None:
        """Take in the powers of the next generation; None and 0 say nothing."""
        self._signal, self._total = self._after(power)

    def of(
        self,
        generation: int,
        sigma: float,
        coefficients: Sequence[float],
        power: SignalPower | None,
    ) -> float:
        """Return the learning rate of an update: equations (1) to (3); 0 where it has no length.

        Args:
            generation: of the update.
            sigma: of its members.
            coefficients: of its directions.
            power: how much its members differ; it counts in the signal, and is told later.
        """
        length = math.sqrt(math.fsum(one * one for one in coefficients))
        if length == 0:
            return 0.0
        signal, total = self._after(power)
        share = max(0.0, signal / total) if total > 0 else 0.0
        to = self._settings
        step = min(
            to.max_step, to.step * share * math.sqrt(effective_directions(coefficients) or 0)
        )
        return max(step, to.least_step / math.sqrt(generation + 1)) * sigma / length

    def _after(self, power: SignalPower | None) -> tuple[float, float]:
        """Return the weighted sums of signal and total with those of one more generation."""
        if power is None or not power.total > 0:
            return self._signal, self._total
        signal, total, keep = self._signal, self._total, self._settings.memory
        if not total / JUMP < power.total < total * JUMP:
            keep = 0.0
        return (
            keep * signal + power.total - power.noise,
            keep * total + power.total,
        )
