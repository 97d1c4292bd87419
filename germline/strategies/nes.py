"""Natural evolution strategy with Gaussian noise: the score-function estimate of grad E[R].

Members play theta + s_i sigma eps_i. With utilities u_i,

    (1)  g     = 1 / (N sigma) * sum_i u_i s_i eps_i          estimate of the gradient
    (2)  theta = theta + step(learning_rate * sigma * g)      the field's convention folds 1/sigma
    into the rate

so what travels is one coefficient per direction, c_k = 1/N * sum of u_i s_i over the members of
direction k: with plain ascent theta moves by learning_rate * sum_k c_k eps_k. Source: Salimans et
al. 2017 (arXiv 1703.03864); the convention and the paper's settings (sigma 1e-3, learning_rate
5e-4, N 30) are those of Qiu et al. 2025 (arXiv 2509.24372).
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from germline.config import Nes, Plateau
from germline.schedules import Plateaus, scheduled
from germline.types import GermlineError, Population, Seeded, Update


class NaturalEvolution:
    """Everything follows from the run seed and the generation.

    Only a sigma that falls on plateaus follows from the fitness told so far as well. Its updates
    carry the mean fitness of their population, so `recall` brings back the same sigma.
    """

    def __init__(self, config: Nes, run_seed: int, generations: int) -> None:
        self.config = config
        self.run_seed = run_seed
        self.generations = generations
        sigma = config.sigma
        self.sigma = Plateaus(sigma) if isinstance(sigma, Plateau) else sigma

    def ask(self, generation: int) -> Population:
        """Name N members: directions 0..N-1, or pairs (+, -) of directions 0..N/2-1."""
        config = self.config
        sigma = self._sigma(generation)
        per_direction = (1, -1) if config.antithetic else (1,)
        members = tuple(
            Seeded(self.run_seed, generation, direction, sign, sigma)
            for direction in range(config.population // len(per_direction))
            for sign in per_direction
        )
        return Population(generation, members, config.antithetic)

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
    ) -> Update:
        """Fold utilities into one coefficient per direction: equation (1) times sigma.

        Raises:
            GermlineError: sigma falls on plateaus, and there is no fitness to see them in.
        """
        coefficients: dict[int, float] = {}
        for member, utility in zip(population.seeded(), utilities, strict=True):
            share = float(utility) * member.sign / len(population)
            coefficients[member.direction] = coefficients.get(member.direction, 0.0) + share
        generation = population.generation
        return Update(
            run_seed=self.run_seed,
            generation=generation,
            sigma=population.seeded()[0].sigma,
            learning_rate=scheduled(self.config.learning_rate, generation, self.generations),
            coefficients=tuple(coefficients[direction] for direction in sorted(coefficients)),
            fitness=self._watched(generation, fitness),
        )

    def recall(self, updates: Sequence[Update]) -> None:
        """Be shown the updates of the generations before, when a stopped run is taken up."""
        if isinstance(self.sigma, Plateaus):
            for update in updates:
                self.sigma.tell(update.generation, update.fitness)

    def _sigma(self, generation: int) -> float:
        if isinstance(self.sigma, Plateaus):
            return self.sigma.at(generation)
        return scheduled(self.sigma, generation, self.generations)

    def _watched(
        self, generation: int, fitness: Float[np.ndarray, "members"] | None
    ) -> float | None:
        """Return the mean fitness of a population that had to be watched, after showing it."""
        if not isinstance(self.sigma, Plateaus):
            return None
        if fitness is None:
            raise GermlineError(
                "strategy.sigma.kind=plateau needs the fitness of the members: "
                "strategy.tell(population, utilities, fitness)"
            )
        known = [one for one in fitness.tolist() if not math.isnan(one)]
        mean = math.fsum(known) / len(known) if known else None
        self.sigma.tell(generation, mean)
        return mean
