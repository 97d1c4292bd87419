"""Utilities are the documented functions of the rewards."""

import math

import numpy as np
import pytest

from germline.config import CenteredRanks, ZScore
from germline.shaping import centered_ranks, z_score


def test_z_score_is_the_documented_formula():
    assert z_score(ZScore(), np.array([1.0, 2.0, 3.0, 6.0])) == pytest.approx(
        np.array([-2.0, -1.0, 0.0, 3.0]) / math.sqrt(3.5)
    )


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_z_score_does_not_depend_on_the_unit_of_reward(scale):
    values = np.array([1.0, 2.0, 3.0, 6.0])
    np.testing.assert_allclose(
        z_score(ZScore(), scale * values), z_score(ZScore(), values), rtol=1e-14
    )


def test_centered_ranks_run_from_minus_a_half_to_a_half():
    assert centered_ranks(CenteredRanks(), np.array([3.0, -1.0, 100.0, 4.0, 7.0])).tolist() == [
        -0.25,
        -0.5,
        0.5,
        0.0,
        0.25,
    ]


def test_centered_ranks_sum_to_zero():
    random = np.random.default_rng(6)
    assert math.fsum(centered_ranks(CenteredRanks(), random.normal(size=101))) == 0
    ties = random.integers(0, 3, 50).astype(float)
    assert abs(math.fsum(centered_ranks(CenteredRanks(), ties))) < 1e-15


def test_ties_share_their_rank():
    shaped = centered_ranks(CenteredRanks(), np.array([1.0, 5.0, 1.0, 5.0, 5.0]))
    assert shaped.tolist() == [-0.375, 0.25, -0.375, 0.25, 0.25]
