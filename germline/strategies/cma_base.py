"""Strategies that search by coordinates: members by value, and a journal of what was told.

Such a strategy keeps a mean m of its own, which begins at 0, where theta began. Members stand at
x_i; an engine is given x_i - m, and after `tell` how far m went. Masters add that to theta, so m
and theta - theta_0 differ by rounding alone.

- Everything follows from the run seed and what was told: the random numbers of generation g are
  those of numpy's frozen Mersenne Twister (`RandomState`), begun anew with four words of the
  project's own noise. A journal keeps what was told, and `recall` tells it again.
- What is told are utilities. CMA-ES goes by their order alone, so it is all the same whether a
  shaping keeps distances; one that makes ties (`elite`, `clip`) takes order away. Members that lost
  all their rewards have utility 0 and rank in the middle. Of members that tie, the first ranks
  first: as members are drawn independently, that is order by lot, and favors no direction.
- Of a generation whose members are all equally good nothing is learned: neither the mean nor the
  step size moves, where order by lot would let them drift.

Limit: the linear algebra of numpy rounds otherwise on other processors, so telling again finds the
same bits on machines of one kind. One thread computes it, so that their number makes no difference.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Float64
from threadpoolctl import ThreadpoolController

from germline import noise
from germline.config import Cma, SepCma
from germline.signal_types import SignalPower
from germline.types import GermlineError, MeanUpdate, Population, Update, VectorPerturbation


class CmaSearch(ABC):
    """Ask and tell around an optimizer of the library `cmaes`.

    Attributes:
        LARGEST: most searched numbers it can keep up with.
        population: members per generation.
        search: the optimizer of the library, which minimizes.
    """

    LARGEST: ClassVar[int]

    def __init__(self, config: Cma | SepCma, run_seed: int, dimension: int) -> None:
        self.config = config
        self.run_seed = run_seed
        self._refuse(dimension)
        self.search = self.begin(dimension)
        self.search._c1 *= config.covariance_rate
        self.search._cmu *= config.covariance_rate
        self.population = int(self.search.population_size)
        self._told = 0

    @classmethod
    def from_config(
        cls, config: Cma | SepCma, *, run_seed: int, generations: int, dimension: int
    ) -> "CmaSearch":
        """Construct it from its section; it adapts and lays nothing out over the generations."""
        return cls(config, run_seed, dimension)

    @abstractmethod
    def begin(self, dimension: int) -> Any:
        """Return the library's optimizer, its mean at 0."""

    @property
    def sigma(self) -> float:
        """The step size of the next generation, in the unit the space gives each tensor."""
        return float(self.search._sigma)

    def ask(self, generation: int) -> Population:
        """Draw the members of the next generation.

        Raises:
            GermlineError: a generation before it was not told.
        """
        self._check_other(generation)
        offsets = (x - self.search.mean for x in self._drawn())
        members = tuple(
            VectorPerturbation(generation, index, one.astype(np.float32))
            for index, one in enumerate(offsets)
        )
        return Population(generation, members, antithetic=False)

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> MeanUpdate:
        """Let the library learn from utilities, the higher the better, and say where its mean went.

        Raises:
            GermlineError: it is not the next generation.
        """
        move = MeanUpdate(population.generation, self.sigma, tuple(utilities.tolist()))
        return self._learned(move)

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[MeanUpdate]:
        """Be told again what a stopped run was told, and return its moves with their offsets.

        Raises:
            GermlineError: the step size is another one than it was: the arithmetic differs.
        """
        return [self._again(move) for move in updates if isinstance(move, MeanUpdate)]

    def _again(self, move: MeanUpdate) -> MeanUpdate:
        if move.sigma != self.sigma:
            raise GermlineError(
                f"journal: told again, generation {move.generation} has step size {self.sigma!r}, "
                f"but the journal says {move.sigma!r}: numpy rounds otherwise here than on the "
                "machine of the run. Go on there, or export its newest snapshot"
            )
        return self._learned(move)

    def _learned(self, move: MeanUpdate) -> MeanUpdate:
        self._check_other(move.generation)
        before = self.search.mean.copy()
        if len(set(move.utilities)) > 1:
            costs = [-one for one in move.utilities]
            told = list(zip(self._drawn(), costs, strict=True))
            with _one_thread():
                self.search.tell(told)
        self._told += 1
        return replace(move, offsets=(self.search.mean - before).astype(np.float32))

    def _drawn(self) -> list[Float64[np.ndarray, " dimension"]]:
        """Draw the members anew: sooner done than kept, and the same every time."""
        words = (
            noise.sampling_uniforms(self.run_seed, self._told, self.config.kind, (0,), 4)[0]
            * 2.0**32
        )
        self.search.reseed_rng(words.astype(np.uint32))
        with _one_thread():
            return [self.search.ask() for _ in range(self.population)]

    def _check_other(self, generation: int) -> None:
        if generation != self._told:
            raise GermlineError(
                f"strategy.kind={self.config.kind} has been told {self._told} generations, so the "
                f"next one is {self._told}, not {generation}: ask and tell one after another; a "
                "stopped run is taken up by strategy.recall(updates)"
            )

    def _refuse(self, dimension: int) -> None:
        kind = self.config.kind
        if dimension < 2:
            raise GermlineError(
                f"strategy.kind={kind} needs at least 2 numbers to search, and the space has "
                f"{dimension}: widen it, or use strategy.kind=nes"
            )
        if dimension > self.LARGEST:
            other = "strategy.kind=sep_cma, " if kind == "cma" else ""
            raise GermlineError(
                f"strategy.kind={kind} can search up to {self.LARGEST:,} numbers, and the space "
                f"has {dimension:,}: use {other}space.kind=subspace with space.dimension="
                f"{min(self.LARGEST, 100)}, or fewer tensors (space.include, space.layers, "
                "space.rank)"
            )


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let numpy's products and decompositions run on one thread."""
    with _threads().limit(limits=1, user_api="blas"):
        yield
