"""A fleet for objective functions, with the loop, space, masters and optimizer of any run.

Only the model and the task are replaced: updates are computed and applied as with a language model.
A generation takes milliseconds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from germline import noise
from germline.config import Full, ShapingConfig, ZScore
from germline.engines.master_weights import Masters
from germline.fleet import LocalFleet
from germline.generation_loop import generations
from germline.methods.method import Method
from germline.optimizers import AscentOptimizer, Sgd
from germline.protocols import Strategy
from germline.shaping import utilities
from germline.spaces import make_space
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GenerationRecord,
    MeanUpdate,
    Perturbation,
    Population,
    TensorInfo,
    Update,
)

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


class _Vectors:
    """What a fleet needs of an engine that writes no texts."""

    def __init__(self, weights: Masters) -> None:
        self.weights = weights

    def apply(self, update: Update | MeanUpdate) -> None:
        self.weights.apply(update)

    def refresh(self) -> None:
        """Do nothing: nothing is derived from the masters."""

    def close(self) -> None:
        """Do nothing: nothing was started."""


class VectorFleet(LocalFleet):
    """Members are points of a problem; theta is two tensors of half its coordinates each."""

    engine: Any

    def __init__(
        self, problem: ObjectiveFunction, optimizer: AscentOptimizer | None = None
    ) -> None:
        self.problem = problem
        halves = {f"half.{k}": half for k, half in enumerate(np.array_split(problem.start, 2))}
        infos = [TensorInfo(name, half.shape, "other", None) for name, half in halves.items()]
        tensors = {name: torch.from_numpy(half.astype(np.float32)) for name, half in halves.items()}
        space = make_space(Full())
        self.engine = _Vectors(
            Masters(tensors, infos, space, optimizer or Sgd(), "constant", "vector")
        )

    @property
    def theta(self) -> Float64[np.ndarray, " dimension"]:
        """The center as a vector."""
        return self._points([None])[0]

    def fitness(self, generation: int = 0) -> float:
        """Return the mean reward of the center, with the noise of a generation."""
        return float(self.problem.rewards(self._points([None]), generation).mean())

    def run_generations(
        self, strategy: Strategy, span: range, shaping: ShapingConfig | None = None
    ) -> Iterator[GenerationRecord]:
        """Run the generations of `span`, yielding one record after each update."""
        batch = [Example(index, "", "", chat=False) for index in range(self.problem.examples)]
        method = Method(strategy, partial(utilities, shaping or ZScore()))
        return generations(method, self, lambda _generation: batch, Decoding(1), span)

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Compute the rewards of every member."""
        return self._evaluation(population.members, decoding)

    def evaluate_center(
        self,
        examples: Sequence[Example],
        decoding: Decoding,
        samples: int = 1,
        graders: object = None,
    ) -> Evaluation:
        """Compute the rewards of the center."""
        return self._evaluation([None] * samples, decoding)

    def _evaluation(self, members: Sequence[Perturbation | None], decoding: Decoding) -> Evaluation:
        rewards = self.problem.rewards(self._points(members), decoding.noise_generation)
        return Evaluation(rewards, (), 0, 0.0)

    def _points(
        self, members: Sequence[Perturbation | None]
    ) -> Float64[np.ndarray, "members dimension"]:
        """Place members around the center, in fp32 as an engine does."""
        weights = self.engine.weights
        rows = []
        for member in members:
            halves = [weights.tensors[info.name] for info in weights.searched]
            if member is not None:
                moves = [weights.displacements([member], info)[0] for info in weights.searched]
                halves = [half + move for half, move in zip(halves, moves, strict=True)]
            rows.append(torch.cat(halves).numpy().astype(np.float64))
        return np.stack(rows)
