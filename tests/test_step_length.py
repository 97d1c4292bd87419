"""The length of an update, from how members change the log-probabilities of tokens."""

import math

import numpy as np
import pytest

from germline.methods.step_length import StepLength, TokenSlopes, divergence_power
from germline.types import Update


def slopes(values, places, parts, first=0):
    values = np.asarray(values, dtype=float)
    return TokenSlopes(
        slice(first, first + len(values)),
        values,
        np.asarray(places),
        np.asarray(parts, dtype=float),
    )


def test_directions_that_agree_move_a_token_together():
    # One example, so nothing is left out: z = (3, 4), (sum z)^2 = 49, over |c|^2 = 25.
    alone = slopes([[1.0], [-1.0]], [0], [[1.0], [1.0]])
    assert divergence_power(np.array([3.0, -4.0]), [alone]) == pytest.approx(49 / 25)


def test_directions_that_did_not_score_a_token_move_it_as_others_do():
    # Each token is known from two of four directions, and z = 1: all four add up to 4.
    groups = [slopes([[1.0], [1.0]], [0], [[1.0], [1.0]], first) for first in (0, 2)]
    assert divergence_power(np.ones(4), groups) == pytest.approx(4**2 / 4)


def test_a_change_that_looks_like_0_by_chance_is_that_of_random_coefficients():
    # z = (3, -3): nothing in common, so the squares of slopes decide: mean (1, 0.5625).
    alone = slopes([[1.0], [0.75]], [0], [[1.0], [1.0]])
    assert divergence_power(np.array([3.0, -4.0]), [alone]) == pytest.approx((1 + 0.5625) / 2)


def test_a_token_is_changed_by_the_other_examples_alone():
    # The coefficients (6, 4) are twice the sum of the parts. Token 0 gets 2 x 2 of direction 0 and
    # token 1 gets 2 x 3 of direction 1, each times 2 / 1 for the example that is left out.
    both = slopes([[1.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 2.0], [3.0, -1.0]])
    apart = (8.0**2 + 12.0**2) / 2 / 2
    assert divergence_power(np.array([6.0, 4.0]), [both]) == pytest.approx(2 * apart / 52)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_the_unit_of_rewards_changes_no_divergence(size):
    places, slopes = np.array([0, 1, 1]), np.array([[1.0, 2.0, 0.5], [0.5, -1.0, 3.0]])
    parts, coefficients = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([3.0, 2.0])
    plain, scaled = (
        divergence_power(coefficients, [TokenSlopes(slice(0, 2), slopes, places, parts * unit)])
        for unit in (1.0, size)
    )
    assert scaled == pytest.approx(plain)


def step(generation, length, log_probs=4.0):
    """Return the rate in sigmas and the divergence of a step of one direction with slope 1."""
    update = Update(0, generation, 0.1, 1.0, (3.0, -4.0))
    alone = slopes([[1.0], [-1.0]], [0], [[1.0], [1.0]])
    found, kl = length.of(update, [alone], log_probs)
    return found, found.learning_rate / 0.1, kl


def test_a_step_changes_log_probabilities_by_a_share_of_themselves():
    # D is 49 / 25, and that of random coefficients 1, of which 6 are typical. The coefficients have
    # the length 5, and the change that is wanted is 0.2 x 2.
    _, rate, kl = step(4, StepLength(0.2))
    mean = (0.7 * 6 + 49 / 25) / 1.7
    assert rate == pytest.approx(0.4 / (5 * math.sqrt(2 * mean)))  # of generation 4: half
    assert kl == pytest.approx(0.4**2 / 4)


def test_the_square_of_a_step_falls_with_the_generations():
    first, fourth = (step(generation, StepLength(0.2))[2] for generation in (0, 3))
    assert first == pytest.approx(0.4**2 / 2)
    assert fourth == pytest.approx(first / (1 + 3 / 4))


def test_answers_that_become_random_do_not_lengthen_steps():
    length = StepLength(0.2)
    first, later, surer = (step(5, length, log_probs=value)[2] for value in (4.0, 9.0, 1.0))
    assert later == first
    assert surer == pytest.approx(first / 4)


def test_the_state_of_step_lengths_is_in_the_updates():
    whole, part = StepLength(0.2), StepLength(0.2)
    updates = [step(generation, whole)[0] for generation in range(3)]
    part.recall(updates[:2])
    assert step(2, part)[0] == updates[2]
    nothing = whole.of(Update(0, 3, 0.1, 1.0, (0.0, 0.0)), [], 0.0)[0]
    assert nothing.learning_rate == 0
    assert nothing.strategy_state == updates[2].strategy_state
