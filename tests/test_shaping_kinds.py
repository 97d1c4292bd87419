"""Shaping: each kind against its equation in numpy, and who the elite is."""

import math

import numpy as np
import pytest

from germline import shaping
from germline.config import LogRank, PerExample, Raw, ZScore
from germline.shaping import log_rank, z_score
from tests.evaluations import of_rewards

NAN = math.nan


def shape(section, rewards, *, antithetic=False):
    return shaping.utilities(section, of_rewards(rewards), antithetic=antithetic)


def without_ties(count, seed=11):
    return np.random.default_rng(seed).normal(size=count)


@pytest.mark.parametrize("count", [2, 3, 8, 31])
def test_log_rank_is_the_equation_of_natural_evolution_strategies(count):
    values = without_ties(count)
    rank = 1 + np.array([(values > one).sum() for one in values])
    weights = np.maximum(0, np.log(count / 2 + 1) - np.log(rank))
    expected = count * (weights / weights.sum() - 1 / count)
    np.testing.assert_allclose(log_rank(LogRank(), values), expected, rtol=1e-12, atol=1e-12)


def test_log_rank_takes_the_worse_half_for_one():
    shaped = log_rank(LogRank(), np.arange(20.0))
    assert set(shaped[:10]) == {-1.0}
    assert np.all(np.diff(shaped[10:]) > 0)


def test_ties_share_the_average_of_their_log_ranks():
    apart, tied = (
        log_rank(LogRank(), np.array([0.0, 1.0, 2.0, 3.0])),
        log_rank(LogRank(), np.array([0.0, 2.0, 2.0, 3.0])),
    )
    assert tied[1] == tied[2] == pytest.approx(apart[1:3].mean())
    assert tied[[0, 3]].tolist() == apart[[0, 3]].tolist()


def test_raw_is_fitness_minus_its_mean_in_the_unit_of_the_reward():
    values = 1000 * without_ties(9)
    np.testing.assert_allclose(shape(Raw(), values[:, None]), values - values.mean())


def test_clipped_z_score_is_cut_and_centered_again():
    values = np.array([0.0, 0.1, -0.1, 0.2, 9.0, -3.0])
    cut = np.clip((values - values.mean()) / values.std(), -0.5, 0.5)
    np.testing.assert_allclose(z_score(ZScore(clip=0.5), values), cut - cut.mean(), atol=1e-15)


def test_a_clip_beyond_all_scores_cuts_nothing():
    values = without_ties(12)
    cut = shape(ZScore(clip=100.0), values[:, None])
    np.testing.assert_allclose(cut, z_score(ZScore(), values), rtol=0, atol=1e-15)


def test_per_example_takes_the_mean_of_the_group_from_every_reward():
    rewards = np.random.default_rng(12).normal(size=(8, 5)) * [1, 2, 3, 4, 5] + [9, 0, 0, -9, 1]
    expected = (rewards - rewards.mean(axis=0)).mean(axis=1)
    np.testing.assert_allclose(shape(PerExample(), rewards), expected, atol=1e-14)


def test_per_example_scaled_is_the_group_advantage_of_grpo():
    rewards = np.random.default_rng(13).normal(size=(8, 5)) * [1, 2, 3, 4, 500]
    advantages = (rewards - rewards.mean(axis=0)) / rewards.std(axis=0)
    scaled = shape(PerExample(scale="std"), rewards)
    np.testing.assert_allclose(scaled, advantages.mean(axis=1), atol=1e-13)
    order = np.argsort(rewards.mean(axis=1))
    assert np.any(np.diff(scaled[order]) < 0)  # the loud example decides no longer alone


@pytest.mark.parametrize("scale", ["none", "std"])
def test_losing_a_hard_example_is_no_advantage_when_examples_are_compared_one_by_one(scale):
    rewards = np.array([[1.0, 0.0, 5.0], [1.0, 0.2, 5.0], [1.0, NAN, 5.0], [3.0, 2.0, 5.0]])
    shaped = shape(PerExample(scale=scale), rewards)
    assert shaped[2] < shaped[3]
    assert abs(shaped.sum()) < 1e-12
    easy = shape(PerExample(scale=scale), np.delete(rewards, 1, axis=1))
    assert np.argmax(shaped) == np.argmax(easy) == 3


def test_an_example_on_which_all_tie_counts_and_one_with_a_single_reward_does_not():
    rewards = np.array([[1.0, 7.0, 3.0], [2.0, 7.0, NAN], [4.0, 7.0, NAN], [NAN, NAN, NAN]])
    shaped = shape(PerExample(scale="std"), rewards)
    alone = shape(PerExample(scale="std"), rewards[:3, :1])
    assert shaped[3] == 0
    np.testing.assert_allclose(shaped[:3], alone / 2, atol=1e-14)


def test_groups_are_those_of_complete_pairs():
    rewards = np.random.default_rng(14).normal(size=(6, 4))
    rewards[3] = NAN
    shaped = shape(PerExample(scale="std"), rewards, antithetic=True)
    assert shaped[2:4].tolist() == [0.0, 0.0]
    rest = shape(PerExample(scale="std"), rewards[[0, 1, 4, 5]], antithetic=True)
    assert np.array_equal(shaped[[0, 1, 4, 5]], rest)


# --- elite ---


def test_the_elite_keeps_its_utilities_and_the_others_get_the_mean_of_theirs():
    values = without_ties(20)
    everyone = z_score(ZScore(), values)
    shaped = shape(ZScore(elite=0.25), values[:, None])
    best = np.argsort(values)[-5:]
    others = np.setdiff1d(np.arange(20), best)
    assert np.array_equal(shaped[best], everyone[best])
    assert len(set(shaped[others])) == 1
    assert shaped[others[0]] == pytest.approx(everyone[others].mean())
    assert abs(shaped.sum()) < 1e-13


@pytest.mark.parametrize(
    ("share", "members", "count"),
    [(0.01, 30, 1), (0.1, 30, 3), (0.11, 30, 4), (0.9, 30, 27), (0.07, 100, 7)],
)
def test_as_many_are_elite_as_the_share_says_rounded_up(share, members, count):
    values = without_ties(members)
    shaped = shape(Raw(elite=share), values[:, None])
    assert len(set(shaped)) == count + 1


def test_who_ties_with_the_last_of_the_elite_belongs_to_it():
    values = np.array([1.0, 3.0, 2.0, 3.0, 3.0, 0.0])
    shaped = shape(Raw(elite=1 / 6), values[:, None])
    assert shaped.tolist() == [-1.0, 1.0, -1.0, 1.0, 1.0, -1.0]


def test_a_tie_at_the_bottom_of_the_elite_takes_everyone_in():
    values = np.array([1.0, 1.0, 1.0, 5.0])
    assert np.array_equal(shape(Raw(elite=0.5), values[:, None]), shape(Raw(), values[:, None]))


def test_the_elite_is_a_share_of_the_members_that_have_a_fitness():
    values = np.array([[4.0], [NAN], [1.0], [2.0], [NAN], [9.0]])
    rest = -5 / 3
    assert shape(Raw(elite=0.25), values) == pytest.approx([rest, 0, rest, rest, 0, 5.0])
