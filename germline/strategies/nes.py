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

import numpy as np
from jaxtyping import Float

from germline.config import Linear, Nes, Scheduled
from germline.schedules import scheduled
from germline.types import Population, Seeded, Update


class NaturalEvolution:
    """Stateless: everything follows from the run seed and the generation."""

    def __init__(self, config: Nes, run_seed: int, generations: int) -> None:
        self.config = config
        self.run_seed = run_seed
        self.generations = generations

    def ask(self, generation: int) -> Population:
        """Name N members: directions 0..N-1, or pairs (+, -) of directions 0..N/2-1."""
        config = self.config
        sigma = scheduled(_ends(config.sigma), generation, self.generations)
        per_direction = (1, -1) if config.antithetic else (1,)
        members = tuple(
            Seeded(self.run_seed, generation, direction, sign, sigma)
            for direction in range(config.population // len(per_direction))
            for sign in per_direction
        )
        return Population(generation, members, config.antithetic)

    def tell(self, population: Population, utilities: Float[np.ndarray, "members"]) -> Update:
        """Fold utilities into one coefficient per direction: equation (1) times sigma."""
        coefficients: dict[int, float] = {}
        for member, utility in zip(population.members, utilities, strict=True):
            share = float(utility) * member.sign / len(population)
            coefficients[member.direction] = coefficients.get(member.direction, 0.0) + share
        return Update(
            run_seed=self.run_seed,
            generation=population.generation,
            sigma=population.members[0].sigma,
            learning_rate=scheduled(
                _ends(self.config.learning_rate), population.generation, self.generations
            ),
            coefficients=tuple(coefficients[direction] for direction in sorted(coefficients)),
        )


def _ends(value: Scheduled) -> float | tuple[float, float]:
    return (value.start, value.end) if isinstance(value, Linear) else value
