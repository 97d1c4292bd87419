"""The problems that are shipped for testing strategies are what they say."""

import numpy as np
import pytest

from germline import noise
from germline.testing import noisy_steps, rosenbrock, rotated_ellipsoid, sphere

TOP = noise.weight_noise(7, 0, 0, "top", 10).astype(np.float64)


@pytest.mark.parametrize("problem", [sphere(), rotated_ellipsoid(), rosenbrock()])
def test_exact_problems_are_zero_at_the_top_and_below_it_elsewhere(problem):
    points = np.stack([TOP, TOP + 0.1, TOP - 0.1, problem.start])
    top, *others = problem.rewards(points, 0)[:, 0]
    assert top == 0
    assert max(others) < 0


def test_noisy_steps_are_flat_nearby_and_differ_from_generation_to_generation():
    problem = noisy_steps()
    near = problem.rewards(np.stack([problem.start, problem.start + 1e-9]), 3)
    assert near.shape == (2, 16)
    assert np.array_equal(near[0], near[1])
    assert not np.array_equal(near, problem.rewards(np.stack([problem.start] * 2), 4))
