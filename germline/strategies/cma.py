"""CMA-ES: evolution strategies that learn their step size and the shape of their population.

Members are x_i = m + sigma y_i with y_i ~ N(0, C), and i:N is the i-th best of N. With weights w_i,
y_w = sum_{i <= mu} w_i y_{i:N}, and in the order of the computation,

    (1)  m       <- m + sigma y_w                                            mean of the better half
    (2)  p_sigma <- (1 - c_s) p_sigma + sqrt(c_s (2 - c_s) mu_w) C^{-1/2} y_w    the path of m
    (3)  sigma   <- sigma exp(c_s / d_s (|p_sigma| / E|N(0, I)| - 1))       longer path, larger step
    (4)  p_c     <- (1 - c_c) p_c + h sqrt(c_c (2 - c_c) mu_w) y_w
    (5)  C       <- (1 - c_1 - c_mu sum w) C + c_1 p_c p_c^T + c_mu sum_i w_i y_{i:N} y_{i:N}^T

Source: Hansen 2016 (arXiv 1604.00772), equations 41 to 47, with its default constants; computed by
the library `cmaes` (Nomura and Shibata 2024, arXiv 2402.01373), which minimizes.

Deviation: `covariance_rate` multiplies c_1 and c_mu; 0 leaves C the identity, and only (3) adapts.

The strategy keeps a mean m, which starts at 0, where theta starts at theta_0. An engine receives
x_i - m, and after `tell` the change of m. Masters add that change to theta, so m and
theta - theta_0 differ by rounding alone. Journals hold the utilities of the members.

- Members follow from the run seed and the utilities so far: the random numbers of generation g are
  those of numpy's frozen Mersenne Twister (`RandomState`), seeded with four words of the project's
  own noise. A journal keeps the utilities, and `recall` passes them to the library again.
- CMA-ES uses the order of the utilities alone, so a shaping that keeps their order changes nothing;
  one that makes ties (`clip`) removes order. Members without any reward have utility 0 and
  rank in the middle. Of tied members the first ranks first: members are drawn independently, so
  that order is random and favors no direction.
- A generation whose members all have the same utility changes neither the mean nor the step size;
  with a random order both would drift.

Limit: the linear algebra of numpy rounds differently on other processors, so `recall` computes the
same bits on machines of one kind. It uses one thread, so the number of threads does not matter.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np
from cmaes import CMA, SepCMA
from jaxtyping import Float, Float64
from threadpoolctl import ThreadpoolController

from germline import noise
from germline.config import Cma, SepCma
from germline.protocols import Strategy
from germline.types import (
    GermlineError,
    MeanUpdate,
    Population,
    SignalPower,
    Update,
    VectorPerturbation,
)


class CmaSearch(Strategy):
    """Ask and tell around `search`, an optimizer of the library `cmaes`, which minimizes."""

    LARGEST: ClassVar[int]
    """Largest supported number of searched numbers."""

    def __init__(self, config: Cma | SepCma, run_seed: int, dimension: int) -> None:
        self.config = config
        self.run_seed = run_seed
        self._check_dimension(dimension)
        self.search = self.begin(dimension)
        self.search._c1 *= config.covariance_rate
        self.search._cmu *= config.covariance_rate
        self.population = int(self.search.population_size)
        self._generation = 0

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
        """Draw the members of the next generation."""
        self._check_is_next(generation)
        members = tuple(
            VectorPerturbation(generation, index, (x - self.search.mean).astype(np.float32))
            for index, x in enumerate(self._draw())
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
        """Pass utilities to the library, and return the change of its mean."""
        update = MeanUpdate(population.generation, self.sigma, tuple(utilities.tolist()))
        return self._with_offsets(update)

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[MeanUpdate]:
        """Pass the utilities of a stopped run to the library; return its updates with offsets."""
        recalled = []
        for update in updates:
            assert isinstance(update, MeanUpdate)
            if update.sigma != self.sigma:
                raise GermlineError(
                    f"journal: recalled, generation {update.generation} has step size "
                    f"{self.sigma!r}, but the journal has {update.sigma!r}: numpy rounds "
                    "differently here than on the machine of the run. Resume it there, or export "
                    "its newest snapshot"
                )
            recalled.append(self._with_offsets(update))
        return recalled

    def _with_offsets(self, update: MeanUpdate) -> MeanUpdate:
        """Pass the utilities of an update to the library, and add the change of its mean."""
        self._check_is_next(update.generation)
        before = self.search.mean.copy()
        if len(set(update.utilities)) > 1:
            costs = [-utility for utility in update.utilities]
            solutions = list(zip(self._draw(), costs, strict=True))
            with _one_thread():
                self.search.tell(solutions)
        self._generation += 1
        return replace(update, offsets=(self.search.mean - before).astype(np.float32))

    def _draw(self) -> list[Float64[np.ndarray, " dimension"]]:
        """Draw the members: the same ones every time, which is cheaper than keeping them."""
        words = (
            noise.sampling_uniforms(self.run_seed, self._generation, self.config.kind, (0,), 4)[0]
            * 2.0**32
        )
        self.search.reseed_rng(words.astype(np.uint32))
        with _one_thread():
            return [self.search.ask() for _ in range(self.population)]

    def _check_is_next(self, generation: int) -> None:
        if generation != self._generation:
            raise GermlineError(
                f"strategy.kind={self.config.kind}: the next generation is {self._generation}, not "
                f"{generation}: ask and tell generation after generation; to continue a stopped "
                "run, call strategy.recall(updates)"
            )

    def _check_dimension(self, dimension: int) -> None:
        if not 2 <= dimension <= self.LARGEST:
            kind = self.config.kind
            other = "nes or sep_cma" if kind == "cma" and dimension > 1 else "nes"
            raise GermlineError(
                f"strategy.kind={kind} can search 2 to {self.LARGEST:,} numbers, and the space has "
                f"{dimension:,}: use strategy.kind={other}, space.kind=subspace with "
                "space.dimension=100, or other tensors (space.include, space.layers, space.rank)"
            )


class CovarianceMatrixAdaptation(CmaSearch):
    """CMA-ES with a full covariance matrix.

    The worse half has negative w_i in (5) (active CMA). `lr_adapt` is LRA-CMA-ES (Nomura et al.
    2023, arXiv 2304.03473): steps of m, and of sigma^2 C, are scaled by how much of them is signal.

    Limits: C has d^2 numbers and is decomposed in every generation, in d^3 operations: measured
    0.15 s of one core for d = 500, 1.0 s for 1,000, 6.9 s and 1.8 GB of memory for 2,000.
    """

    LARGEST = 2_000

    def begin(self, dimension: int) -> CMA:
        """Return the library's optimizer, its mean at 0."""
        config = cast(Cma, self.config)
        return _Cma(
            mean=np.zeros(dimension),
            sigma=config.sigma,
            seed=0,  # replaced before every draw
            population_size=config.population,
            lr_adapt=config.lr_adapt,
        )


class _Cma(CMA):
    """The library's optimizer, drawing the same members at a d-th of the cost."""

    def _sample_solution(self) -> Float64[np.ndarray, " dimension"]:
        """Draw x = m + sigma B D z without the library's product of B and a matrix of D.

        A product with a diagonal has one term per sum, so it is that of the columns, bit for bit.
        """
        b, d = self._eigen_decomposition()
        z = self._rng.randn(self._n_dim)
        return self._mean + self._sigma * (b * d).dot(z)


class SeparableCovarianceAdaptation(CmaSearch):
    """Separable CMA-ES: C is a diagonal, a variance for every searched number.

    It learns in fewer generations, as c_mu can be larger by (d + 2) / 3, and costs some passes over
    the population. It does not learn correlations between the numbers. Source: Ros and Hansen 2008
    (PPSN X).

    Deviation: only the better half has weights (no active update, as in the library).

    Limit: several copies of the population are in memory, 8 bytes a number: with d = 1,000,000 and
    its 45 members up to 2 GB, here and in every engine that mirrors the search.
    """

    LARGEST = 1_000_000

    def begin(self, dimension: int) -> SepCMA:
        """Return the library's optimizer, its mean at 0."""
        return SepCMA(
            mean=np.zeros(dimension),
            sigma=self.config.sigma,
            seed=0,  # replaced before every draw
            population_size=self.config.population,
        )


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let numpy's products and decompositions run on one thread."""
    with _threads().limit(limits=1, user_api="blas"):
        yield
