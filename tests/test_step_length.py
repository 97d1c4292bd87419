"""The length of an update, from how members change the log-probabilities of tokens."""

import math

import numpy as np
import pytest

from germline.methods.sampled_batch import draw_rows, group_advantages, mean_rewards
from germline.methods.step_length import GROWTH, StepLength, TokenSlopes, divergence_power
from germline.types import Update


def slopes(values, places, parts, first=0):
    values = np.asarray(values, dtype=float)
    directions, places = slice(first, first + len(values)), np.asarray(places)
    return TokenSlopes(directions, values, places, np.asarray(parts, dtype=float))


def test_directions_that_agree_move_a_token_together():
    # One example, so nothing is left out: z = (3, 4), (sum z)^2 = 49, over |c|^2 = 25.
    alone = slopes([[1.0], [-1.0]], [0], [[1.0], [1.0]])
    assert divergence_power(np.array([3.0, -4.0]), [alone]) == pytest.approx(49 / 25)


def test_directions_that_did_not_score_a_token_move_it_as_others_do():
    # Each token is known from two of four directions, and z = 1: all four add up to 4.
    groups = [slopes([[1.0], [1.0]], [0], [[1.0], [1.0]], first) for first in (0, 2)]
    assert divergence_power(np.ones(4), groups) == pytest.approx(4**2 / 4)


def test_a_change_that_looks_like_0_by_chance_is_that_of_random_coefficients():
    # z = (3, -3): nothing in common, so the squares of slopes decide: mean (1, 0.5625), twice.
    alone = slopes([[1.0, 1.0], [0.75, 0.75]], [0, 0], [[1.0], [1.0]])
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


def step(length, log_probs=4.0, rewards=(0.0, 1.0), share=0.0):
    """Return the rate in sigmas and the divergence of a step of one direction with slope 1."""
    update = Update(0, 0, 0.1, 1.0, (3.0, -4.0))
    alone = slopes([[1.0], [-1.0]], [0], [[1.0], [1.0]])
    found, kl = length.of(update, [alone], log_probs, np.array(rewards, ndmin=2), share)
    return found, found.learning_rate / 0.1, kl


def steps(length, *rewards):
    """Return the shares by which the log-probabilities of 2 nats change, one per generation."""
    return [math.sqrt(2 * step(length, rewards=one)[2]) / 2 for one in rewards]


def test_a_step_changes_log_probabilities_by_a_share_of_themselves():
    # D is 49 / 25, and that of random coefficients 1, of which 6 are typical. The coefficients have
    # the length 5, and the change that is wanted is 0.2 x 2.
    _, rate, kl = step(StepLength(0.2, 0.6, 4.0))
    mean = (0.7 * 6 + 49 / 25) / 1.7
    assert rate == pytest.approx(0.4 / (5 * math.sqrt(mean)))
    assert kl == pytest.approx(0.4**2 / 2)


LOW, HIGH, NOISY = (0.1, 0.2), (0.7, 0.8), (0.0, 1.0)


def test_steps_grow_while_rewards_are_alike_and_shrink_where_they_have_changed():
    found = steps(StepLength(0.2, 0.4, 4.0), LOW, LOW, NOISY, LOW, HIGH, HIGH, LOW)
    faded = [0.4 / (1 + 1 / 4), 0.4 / 1.02 / (1 + 2 / 4), 0.4 / 1.02**2 / (1 + 3 / 4)]
    assert found == pytest.approx([0.2, 0.3, 0.4, *faded, 0.4 / (1 + 3 / 4)])
    worse = steps(StepLength(0.2, 0.4, 4.0), HIGH, LOW, (math.nan, 0.75), (0.7, math.nan))
    assert worse == pytest.approx([0.2, *(0.2 / (1 + n / 4) for n in (1, 2, 3))])


def test_batches_of_all_examples_differ_by_the_noise_of_samples_alone():
    # Means of 0 and 1, then 0.3 and 1.3: two standard errors are 0.2 of samples, 1.4 of examples.
    samples = [[[-0.1, 0.9], [0.1, 1.1]], [[0.2, 1.2], [0.4, 1.4]]]
    few, all_of_them = (
        [step(length, rewards=one, share=share)[2] for one in samples]
        for length, share in ((StepLength(0.2, 0.6, 4.0), 0.1), (StepLength(0.2, 0.6, 4.0), 1.0))
    )
    assert few[1] > few[0]
    assert all_of_them[1] < all_of_them[0]


def test_generations_without_new_rewards_leave_steps_as_they_are():
    equal = [(0.1,) * count for count in (8, 7, 6)]
    nothing = steps(StepLength(0.2, 0.4, 4.0), *equal[:2], (), (math.nan,) * 2, equal[2])
    assert nothing == pytest.approx([0.2, 0.3, 0.3, 0.3, 0.4])
    assert steps(StepLength(0.2, 0.4, 4.0), (1.0,)) == pytest.approx([0.2 / (1 + 1 / 4)])


def test_settings_hold_the_length_of_steps():
    assert steps(StepLength(0.5, 0.2, None), LOW, LOW, LOW, HIGH) == pytest.approx([0.5] * 4)
    never_longer = steps(StepLength(0.2, 0.2, 4.0), LOW, LOW, LOW, HIGH)
    assert never_longer == pytest.approx([0.2 / (1 + n / 4) for n in range(4)])


def test_steps_grow_up_to_the_share_by_which_the_first_would_be_two_members_long():
    length, nats = StepLength(0.2, 0.6, 4.0), 14.0
    first, *later = (step(length, log_probs=nats**2, rewards=LOW) for _ in range(3))
    longest = 0.2 * 2 / (first[1] * 5)
    assert 0.2 < longest < 0.3
    shares = [math.sqrt(2 * kl) / nats for *_, kl in later]
    assert shares == pytest.approx([longest, longest / (1 + 1 / 4)])


def test_answers_that_become_random_do_not_lengthen_steps():
    length = StepLength(0.2, 0.2, None)
    first, later, surer = (step(length, log_probs=value)[2] for value in (4.0, 9.0, 1.0))
    assert later == first
    assert surer == pytest.approx(first / 4)


def test_weights_decay_as_far_as_the_step_goes_where_it_grows_no_more_and_rewards_are_lower():
    length, unknown = StepLength(0.2, 0.2 * GROWTH, 4.0, 0.1), (math.nan, math.nan)
    alike = [(-0.2, -0.1), (-0.25, -0.15), (-0.25, -0.15)]
    rewards = [*alike, LOW, (0.0, 0.1), unknown, (math.nan, 0.05), LOW, unknown, alike[1]]
    updates = [step(length, rewards=one)[0] for one in rewards]
    states = [one.strategy_state["step"] for one in updates]
    shares = [0.1 * (one["relative_step"] / 0.2 / (1 + one["changed"] / 4)) for one in states]
    assert [one.decay for one in updates] == [0, 0, shares[2], 0, *shares[4:7], 0, 0, 0]
    assert 0 < shares[6] < 0.1 < shares[2]


def test_weights_decay_three_times_as_far_at_most():
    length = StepLength(0.01, 1.0, None, 0.2)
    updates = [step(length, rewards=one)[0] for one in (*[LOW] * 5, HIGH, (0.6, 0.65))]
    assert updates[-1].strategy_state["step"]["relative_step"] > 0.03
    assert updates[-1].decay == pytest.approx(0.6)


def test_the_state_of_step_lengths_is_in_the_updates():
    whole, part = StepLength(0.2, 0.6, 4.0), StepLength(0.2, 0.6, 4.0)
    updates = [step(whole, rewards=rewards)[0] for rewards in (LOW, NOISY, HIGH, LOW, LOW)]
    part.recall(updates[:4])
    assert step(part, rewards=LOW)[0] == updates[4]
    nothing = whole.of(Update(0, 3, 0.1, 1.0, (0.0, 0.0)), [], 0.0, np.array([LOW]), 0.0)[0]
    assert nothing.learning_rate == 0
    assert nothing.strategy_state == updates[4].strategy_state


def test_advantages_leave_out_missing_rewards_and_ties():
    rewards = np.array([[1.0, 0.0, 5.0], [0.0, 0.0, np.nan], [1.0, 0.0, 7.0]])
    plain = group_advantages(rewards, "none")
    first = pytest.approx([1 / 3, -2 / 3, 1 / 3])
    assert plain.T.tolist() == [first, [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]]
    by_group = group_advantages(rewards, "group")
    assert by_group[:, 2].tolist() == pytest.approx([-math.sqrt(0.5), 0.0, math.sqrt(0.5)])
    known = rewards[~np.isnan(rewards)]
    assert group_advantages(rewards, "batch") == pytest.approx(plain / known.std(ddof=1))


WEIGHTS = np.array([0.5, 0.0, -2.0, 0.1, -0.4, 3.0])


@pytest.mark.parametrize(("least_share", "groups"), [(0.0, 1), (0.0, 4), (0.7, 4), (1.0, 2)])
def test_drawn_rows_weigh_on_average_what_all_rows_weigh(least_share, groups):
    mean = np.zeros((groups, 6))
    for i in range(1000):
        drawn, _ = draw_rows(WEIGHTS, 3, least_share, groups, (i + 0.5) / 1000)
        for group, rows in enumerate(drawn):
            assert len(rows) <= 3
            for row, weight in rows.items():
                mean[group, row] += weight / 1000
    assert mean == pytest.approx(np.tile(WEIGHTS, (groups, 1)), abs=0.02)


def test_groups_draw_neighbors_and_together_all_rows():
    drawn, share = draw_rows(np.ones(64), 16, 0.0, 4, 0.123)
    assert share == 0.25
    assert sorted(row for rows in drawn for row in rows) == list(range(64))
    for rows in drawn:
        first = next(row for row in rows if (row - 1) % 64 not in rows)
        assert {(row - first) % 64 for row in rows} == set(range(16))


def test_arcs_that_overlap_hit_different_rows():
    drawn, share = draw_rows(np.ones(64), 16, 0.5, 4, 0.123)
    assert share == 0.5
    assert {row for rows in drawn for row in rows} == set(range(64))


def test_all_rows_are_scored_as_they_are_where_they_are_few():
    drawn, share = draw_rows(np.array([0.0, 2.0, -1.0]), 2, 0.0, 3, 0.3)
    assert drawn == [{1: 2.0, 2: -1.0}] * 3
    assert share == 1.0


def test_the_mean_rewards_of_samples_are_those_of_the_rewards_that_are_known():
    rewards = np.array([[1.0, np.nan], [0.0, 0.0], [np.nan, np.nan]])
    assert mean_rewards(rewards)[:2].tolist() == [1.0, 0.0]
    assert np.isnan(mean_rewards(rewards)[2])


@pytest.mark.parametrize("size", [1e300, 1e-320])
def test_huge_and_tiny_rewards_have_the_advantages_of_others(size):
    rewards = np.array([[1.0], [0.0], [1.0], [-1.0]])
    for scale in ("group", "batch"):
        same = pytest.approx(group_advantages(rewards, scale))
        assert group_advantages(rewards * size, scale) == same
