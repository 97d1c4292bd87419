"""Objective functions for tests of strategies: a vector in, rewards out, with maximum 0.

All are maximized, deterministic, and shifted, so that no coordinate of the maximum is special.
Sphere, rotated ellipsoid and Rosenbrock are those of Hansen et al. (2009, BBOB), up to the shift.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from germline import noise

Points = Float64[np.ndarray, "points dimension"]
Rewards = Float64[np.ndarray, "points examples"]

SEED = 7
"""Run seed of everything random about the problems themselves."""


@dataclass(frozen=True)
class ObjectiveFunction:
    """A function to maximize.

    Attributes:
        start: initial theta.
        rewards: (points, generation) -> rewards, one column per example; the noise depends on the
            generation and is the same for all points.
        examples: number of columns.
    """

    start: Float64[np.ndarray, " dimension"]
    rewards: Callable[[Points, int], Rewards]
    examples: int = 1

    @property
    def dimension(self) -> int:
        """How many numbers are searched."""
        return len(self.start)


def sphere(dimension: int = 10) -> ObjectiveFunction:
    """-|x - top|^2, the simplest problem."""
    top = _shift(dimension)
    return _exact(dimension, lambda x: -((x - top) ** 2).sum(axis=1))


def rotated_ellipsoid(dimension: int = 10, condition: float = 1e6) -> ObjectiveFunction:
    """-sum_i condition^(i / (d - 1)) (R (x - top))_i^2: long valleys along no coordinate.

    Args:
        dimension: at least 2.
        condition: curvature of the steepest direction over that of the flattest.
    """
    top, rotation = _shift(dimension), _rotation(dimension)
    curvature = condition ** (np.arange(dimension) / (dimension - 1))
    return _exact(dimension, lambda x: -(((x - top) @ rotation.T) ** 2 @ curvature))


def rosenbrock(dimension: int = 10) -> ObjectiveFunction:
    """-sum_i 100 (y_{i+1} - y_i^2)^2 + (1 - y_i)^2 of y = x + 1 - top: a curved valley."""
    top = _shift(dimension)

    def value(x: Points) -> Float64[np.ndarray, " points"]:
        y = x + 1 - top
        valley, along = y[:, 1:] - y[:, :-1] ** 2, 1 - y[:, :-1]
        return -(100 * valley**2 + along**2).sum(axis=1)

    return _exact(dimension, value)


def noisy_steps(dimension: int = 10, examples: int = 16, spread: float = 0.5) -> ObjectiveFunction:
    """-sum_i floor(2 |x_i - top_i - noise_ij|): flat nearly everywhere, shifted for each example.

    The mean over examples is a step function with many small steps, as accuracies over a batch are.
    The loss due to noise remains at the maximum as well.

    Each example has its own noise, with the standard deviation `spread`.
    """
    top = _shift(dimension)

    def rewards(x: Points, generation: int) -> Rewards:
        sampling_noise = noise.draw_noise_rows(SEED, generation, range(examples), "luck", dimension)
        away = np.abs(x[:, None] - top - spread * sampling_noise.astype(np.float64))
        return -np.floor(2 * away).sum(axis=2)

    return ObjectiveFunction(np.zeros(dimension), rewards, examples)


def _exact(
    dimension: int, value: Callable[[Points], Float64[np.ndarray, " points"]]
) -> ObjectiveFunction:
    return ObjectiveFunction(np.zeros(dimension), lambda x, _generation: value(x)[:, None])


def _shift(dimension: int) -> Float64[np.ndarray, " dimension"]:
    return noise.weight_noise(SEED, 0, 0, "top", dimension).astype(np.float64)


def _rotation(dimension: int) -> Float64[np.ndarray, "dimension dimension"]:
    """Draw a rotation: the Q of a Gaussian matrix, by columns."""
    drawn = noise.weight_noise(SEED, 0, 0, "rotation", dimension**2).astype(np.float64)
    return np.linalg.qr(drawn.reshape(dimension, dimension))[0]
