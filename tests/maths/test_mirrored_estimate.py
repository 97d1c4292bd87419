"""The mirrored estimate is unbiased: on a quadratic its mean is the true gradient, at any sigma."""

import numpy as np
import pytest

from germline.config import Nes, Raw
from germline.strategies import make_strategy
from germline.testing import ObjectiveFunction, VectorFleet

DIRECTIONS, RATE = 2048, 1e-4
RANDOM = np.random.default_rng(0)
START, SLOPE, ROOT = RANDOM.normal(size=8), RANDOM.normal(size=8), RANDOM.normal(size=(8, 8))
HESSIAN = ROOT @ ROOT.T


def quadratic(points, _generation):
    curved = 0.5 * np.einsum("pi,ij,pj->p", points, HESSIAN, points)
    return (points @ SLOPE - curved)[:, None]


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_a_step_is_sigma_times_the_gradient_within_the_error_of_its_directions(sigma):
    section = {"population": 2 * DIRECTIONS, "sigma": sigma, "learning_rate": RATE}
    strategy = make_strategy(Nes.model_validate(section), run_seed=0, generations=1)
    fleet = VectorFleet(ObjectiveFunction(START, quadratic))
    before = fleet.theta
    list(fleet.run_generations(strategy, range(1), Raw()))
    estimate = (fleet.theta - before) / (RATE * sigma)
    gradient = SLOPE - HESSIAN @ before
    # Each direction e gives (g . e) e, whose variance in coordinate i is |g|^2 + g_i^2.
    error = np.sqrt((gradient @ gradient + gradient**2) / DIRECTIONS)
    assert (np.abs(estimate - gradient) < 4 * error).all()
    assert np.linalg.norm(estimate - gradient) < 0.1 * np.linalg.norm(gradient)
