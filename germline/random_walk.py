"""Distance of theta from its start if the updates were a random walk.

An update changes each weight by the sum of c_k eps_k over directions, times the learning rate a.
Without a signal the coefficients are noise, so a step has the root mean square

    (1)  s_t = a_t |c_t|                    per weight, in `strategy.sigma_unit`

and steps along new directions add up as a random walk:

    (2)  w_T = sqrt(sum_t s_t^2)     rate * delta * sqrt(T) of docs/tuning.md, measured

Steps along reused directions (`strategy.noise_reuse`) are parallel: their coefficients are added
before they are squared. With momentum, a step counts 1 / (1 - momentum) times in the end. Adam
divides by the size of its gradients, so that s_t = a_t for gradients of any size.

Limits: weight decay and sigmas that differ by tensor are not included. The distance is an upper
bound of the noise: with a signal, a part of each step is signal.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from germline.config import OptimizerConfig
from germline.types import MeanUpdate, Update


class RandomWalk:
    """The distance of equation (2), update by update.

    Args:
        optimizer: turns updates into steps; plain ascent by default.
        start: distance before the first update, as in a forked run.
    """

    def __init__(self, optimizer: OptimizerConfig | None = None, start: float = 0.0) -> None:
        self._normalized = optimizer is not None and optimizer.kind == "adam"
        self._gain = 1 / (1 - getattr(optimizer, "momentum", 0.0))
        self._squared = start**2
        self._noise_of: tuple[int, int] | None = None
        self._step: Float64[np.ndarray, " directions"] = np.zeros(0)
        self._known = True

    @property
    def distance(self) -> float | None:
        """The distance so far, in `strategy.sigma_unit`; None if a step is no sum of directions."""
        if not self._known:
            return None
        return math.sqrt(self._squared + _square(self._step))

    def follow(self, update: Update | MeanUpdate) -> None:
        """Add the step of one more update."""
        if isinstance(update, MeanUpdate) or update.backpropagated:
            self._known = False
            return
        if update.skipped:
            return
        step = self._gain * update.learning_rate * np.asarray(update.coefficients, np.float64)
        if self._normalized:
            step = np.array([update.learning_rate if step.any() else 0.0])
        drawn = update.with_noise_generation()
        noise_of = (drawn.run_seed, drawn.generation)
        reused = noise_of == self._noise_of and not self._normalized
        if not reused or len(step) != len(self._step):
            self._squared += _square(self._step)
            self._step = np.zeros_like(step)
        self._step = self._step + step
        self._noise_of = noise_of


def _square(step: Float64[np.ndarray, " directions"]) -> float:
    with np.errstate(over="ignore"):  # of rewards near the end of float64, not shaped: infinite
        return float(step @ step)


def walked(
    updates: Sequence[Update | MeanUpdate],
    optimizer: OptimizerConfig | None = None,
    start: float = 0.0,
) -> list[float | None]:
    """Return the distance after each of a run's updates."""
    walk = RandomWalk(optimizer, start)
    distances = []
    for update in updates:
        walk.follow(update)
        distances.append(walk.distance)
    return distances
