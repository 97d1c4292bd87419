"""Natural evolution strategy with Gaussian noise: the score-function estimate of grad E[R].

Members play theta + s_i sigma eps_i. With utilities u_i,

    (1)  g     = 1 / (N sigma) * sum_i u_i s_i eps_i          estimate of the gradient
    (2)  theta = theta + step(learning_rate * sigma * g)      the field's convention folds 1/sigma
    into the rate

so what travels is one coefficient per direction, c_k = 1/N * sum of u_i s_i over the members of
direction k: with plain ascent theta moves by learning_rate * sum_k c_k eps_k. Source: Salimans et
al. 2017 (arXiv 1703.03864); the convention and the paper's settings (sigma 1e-3, learning_rate
5e-4, N 30) are those of Qiu et al. 2025 (arXiv 2509.24372).

Beyond the paper: by default sigma is calibrated in units of behavior
(`strategies.calibrated_sigma`), and the learning rate follows the measured signal
(`strategies.signal_learning_rate`): the coefficients then say where to go and the rate how far. Off
by
default: other ways in which sigma adapts (`strategies.sigma_adaptation`), directions that are
played for several generations, and fitness compared with a running mean of earlier ones.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from germline.config import AutoLearningRate, Nes, RunningMeanBaseline, SkipZeroSignal
from germline.schedules import value_at
from germline.signal_types import SignalPower
from germline.strategies.adaptive_values import RunningMeanFitness
from germline.strategies.sigma_adaptation import SigmaSchedule, success_rate
from germline.strategies.signal_learning_rate import SignalLearningRate
from germline.types import (
    GermlineError,
    MeanUpdate,
    Perturbation,
    Population,
    SeedPerturbation,
    Update,
)

CALIBRATION_PAIRS = 8
"""Antithetic pairs that try a sigma; in a pair the linear part of log-probabilities cancels."""


class NaturalEvolution:
    """Everything follows from the run seed, the generation and the updates told so far.

    Without a sigma that adapts or a running baseline, what was told plays no part. With one,
    updates carry what it goes by, so `recall` brings everything back.
    """

    def __init__(self, config: Nes, run_seed: int, generations: int) -> None:
        self.config = config
        self.run_seed = run_seed
        self.generations = generations
        self.sigma = SigmaSchedule(config, generations)
        running = config.baseline
        self.baseline = (
            RunningMeanFitness(running) if isinstance(running, RunningMeanBaseline) else None
        )
        rate = config.learning_rate
        self.measured = SignalLearningRate(rate) if isinstance(rate, AutoLearningRate) else None

    @classmethod
    def from_config(
        cls, config: Nes, *, run_seed: int, generations: int, dimension: int
    ) -> "NaturalEvolution":
        """Construct it from its section; it searches any number of dimensions."""
        return cls(config, run_seed, generations)

    def calibrate(
        self, generation: int, divergence: Callable[[Sequence[Perturbation]], float]
    ) -> None:
        """Try sigmas with a few pairs of the generation's own directions, where sigma is `auto`."""

        def at(sigma: float) -> float:
            drawn_in = self._drawn_in(generation)
            return divergence(
                [
                    SeedPerturbation(self.run_seed, drawn_in, direction, sign, sigma)
                    for direction in range(CALIBRATION_PAIRS)
                    for sign in (1, -1)
                ]
            )

        self.sigma.calibrate(generation, at)

    def ask(self, generation: int) -> Population:
        """Name N members: directions 0..N-1, or pairs (+, -) of directions 0..N/2-1."""
        config = self.config
        sigma = self.sigma.at(generation)
        per_direction = (1, -1) if config.antithetic else (1,)
        members = tuple(
            SeedPerturbation(self.run_seed, self._drawn_in(generation), direction, sign, sigma)
            for direction in range(config.population // len(per_direction))
            for sign in per_direction
        )
        return Population(
            generation,
            members,
            config.antithetic,
            evaluate_center=self.sigma.wants_success,
            baseline=self.baseline.at(generation) if self.baseline else None,
        )

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update:
        """Fold utilities into one coefficient per direction: equation (1) times sigma.

        Raises:
            GermlineError: something adapts to a fitness that is not given, or the generation is
                not the one after those told.
        """
        coefficients: dict[int, float] = {}
        shares: dict[int, float] = {}
        for member, utility in zip(population.seed_perturbations(), utilities, strict=True):
            share = float(utility) / len(population)
            shares[member.direction] = shares.get(member.direction, 0.0) + share
            share = float(utility) * member.sign / len(population)
            coefficients[member.direction] = coefficients.get(member.direction, 0.0) + share
        generation, drawn_in = population.generation, self._drawn_in(population.generation)
        sigma = population.seed_perturbations()[0].sigma
        in_order = tuple(coefficients[direction] for direction in sorted(coefficients))
        update = Update(
            run_seed=self.run_seed,
            generation=generation,
            sigma=sigma,
            learning_rate=self._rate(generation, sigma, in_order, power),
            coefficients=in_order,
            fitness=self._mean(fitness),
            success_rate=success_rate(self._needed(fitness), center)
            if self.sigma.wants_success
            else None,
            noise_generation=None if drawn_in == generation else drawn_in,
            sigma_update=self.sigma.stretch([shares[direction] for direction in sorted(shares)]),
            signal_power=power if self.measured else None,
        )
        if update.has_no_signal and isinstance(self.config.zero_signal, SkipZeroSignal):
            update = replace(update, skipped=True)
        self._take_in(update)
        return update

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Be shown the updates of the generations before, when a stopped run is taken up."""
        for update in updates:
            if isinstance(update, Update):
                self._take_in(update)
        return updates

    def _rate(
        self,
        generation: int,
        sigma: float,
        coefficients: Sequence[float],
        power: SignalPower | None,
    ) -> float:
        if self.measured:
            return self.measured.of(generation, sigma, coefficients, power)
        assert not isinstance(self.config.learning_rate, AutoLearningRate)
        return value_at(self.config.learning_rate, generation, self.generations)

    def _take_in(self, update: Update) -> None:
        self.sigma.tell(update)
        if self.measured:
            self.measured.tell(update.signal_power)
        if self.baseline:
            self.baseline.tell(update.generation, update.fitness)

    def _drawn_in(self, generation: int) -> int:
        """Return the generation whose noise is played: the first of those that share it."""
        return generation - generation % self.config.noise_reuse

    def _mean(self, fitness: Float[np.ndarray, "members"] | None) -> float | None:
        """Return the mean over members with a fitness, where something goes by it."""
        if not self.sigma.wants_fitness and self.baseline is None:
            return None
        known = [one for one in self._needed(fitness).tolist() if not math.isnan(one)]
        return math.fsum(known) / len(known) if known else None

    def _needed(self, fitness: Float[np.ndarray, "members"] | None) -> Float[np.ndarray, "members"]:
        if fitness is None:
            setting = "baseline" if self.baseline else "sigma"
            kind = getattr(getattr(self.config, setting), "kind", "")
            raise GermlineError(
                f"strategy.{setting}.kind={kind} needs the fitness of the members: "
                "strategy.tell(population, utilities, fitness)"
            )
        return fitness
