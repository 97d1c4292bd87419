"""A fleet for objective functions, with the loop, space, masters and optimizer of any run.

Only the model and the task are replaced: updates are computed and applied as with a language model.
A generation takes milliseconds.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from germline.config import Full, ShapingConfig, ZScore
from germline.engines.master_weights import Masters
from germline.fleet import LocalFleet
from germline.generation_loop import generations
from germline.methods.method import Method
from germline.optimizers import AscentOptimizer, Sgd
from germline.protocols import Strategy
from germline.shaping import utilities
from germline.spaces import make_space
from germline.testing.benchmark_functions import ObjectiveFunction
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
