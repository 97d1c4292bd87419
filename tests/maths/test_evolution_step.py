"""A run of nes is twenty lines of numpy, step for step."""

import numpy as np
import pytest

from germline import noise
from germline.config import Nes
from germline.strategies import make_strategy
from germline.strategies.sigma_rules import value_at
from germline.testing import VectorFleet, rosenbrock, sphere


def noise_of(seed, generation, direction):
    halves = [noise.weight_noise(seed, generation, direction, f"half.{k}", 5) for k in range(2)]
    return np.concatenate(halves)


def reference(config, problem, seed, generations):
    """Climb with nes in numpy, in fp32 where masters are: every step of the equations."""
    theta = problem.start.astype(np.float32)
    for g in range(generations):
        sigma = value_at(config.sigma, g, generations)
        signs = (1, -1) if config.antithetic else (1,)
        count = config.population // len(signs)
        drawn = [noise_of(seed, g, k) for k in range(count)]
        members = [(k, s) for k in range(count) for s in signs]
        points = [theta + np.float32(s * sigma) * drawn[k] for k, s in members]
        fitness = problem.rewards(np.stack(points).astype(np.float64), g).mean(axis=1)
        away = fitness - fitness.mean()
        utility = away / away.std()
        step = np.zeros(problem.dimension, np.float32)
        for k in range(count):
            c = sum(u * s for (j, s), u in zip(members, utility, strict=True) if j == k)
            step += np.float32(c / len(members)) * drawn[k]
        theta = theta + np.float32(value_at(config.learning_rate, g, generations)) * step
    return theta


SCHEDULES = {
    "sigma": {"start": 0.3, "end": 0.1},
    "learning_rate": {"kind": "cosine", "start": 0.3, "end": 0.05, "warmup": 2},
}


@pytest.mark.parametrize("problem", [sphere(), rosenbrock()], ids=["sphere", "rosenbrock"])
@pytest.mark.parametrize(
    "settings", [{}, {"antithetic": False}, SCHEDULES], ids=["pairs", "no pairs", "schedules"]
)
def test_nes_agrees_step_for_step_with_twenty_lines_of_numpy(settings, problem):
    section = {"population": 8, "sigma": 0.1, "learning_rate": 0.02, **settings}
    config = Nes.model_validate(section)
    fleet = VectorFleet(problem)
    strategy = make_strategy(config, run_seed=5, generations=12)
    for record in fleet.run_generations(strategy, range(12)):
        done = record.generation + 1
    # The mean of fitness is rounded once here and once more there: an ulp of fp32 in a coefficient.
    expected = reference(config, problem, 5, done)
    assert fleet.theta == pytest.approx(expected, rel=2e-6, abs=2e-6)
