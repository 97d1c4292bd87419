"""Shaping: rewards to fitness with missing data, fitness to utilities with ties."""

import math

import numpy as np
import pytest

from germline import registry, shaping
from germline.config import CenteredRanks, PerExample, ShapingConfig, ZScore, load_config
from germline.shaping import RESOLUTION, centered_ranks, fitness
from tests.evaluations import of_fitness, of_rewards

NAN = math.nan


def section(**settings) -> ShapingConfig:
    return load_config({"shaping": settings}).shaping


KINDS = {
    **{kind: section(kind=kind) for kind in registry.sections("shaping")},
    "clipped z_score": ZScore(clip=1.0),
    "scaled per_example": PerExample(scale="std"),
    **{f"elite {kind}": section(kind=kind, elite=0.3) for kind in registry.sections("shaping")},
}


def utilities(kind, fitness, *, antithetic):
    return shaping.utilities(KINDS[kind], of_fitness(fitness), antithetic=antithetic)


@pytest.fixture
def additive():
    """Rewards that are exactly member effect + example effect, and the members' true means."""
    rng = np.random.default_rng(0)
    members, examples = rng.normal(size=12), 5 * rng.normal(size=9)
    rewards = members[:, None] + examples
    return rewards, rewards.mean(axis=1)


# --- fitness ---


def test_fitness_of_complete_rewards_is_the_mean_over_examples():
    rewards = np.random.default_rng(1).normal(size=(6, 11))
    np.testing.assert_allclose(fitness(rewards), rewards.mean(axis=1), rtol=0, atol=1e-15)


def test_fitness_does_not_depend_on_the_order_of_the_examples():
    rng = np.random.default_rng(2)
    rewards = rng.choice([0.0, 0.1, 0.6, 1.1], size=(20, 200))
    for _ in range(5):
        assert np.array_equal(fitness(rewards[:, rng.permutation(200)]), fitness(rewards))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([[1.0, 0.0], [1.0, 0.0], [1.0, NAN]], [0.5, 0.5, 0.5]),  # no advantage by a lost example
        ([[1.0, 3.0], [NAN, NAN], [2.0, NAN]], [2.0, NAN, 3.0]),
        ([[1.0, NAN, 3.0], [2.0, NAN, 6.0]], [2.0, 4.0]),  # an example nobody finished
        ([[NAN, NAN]] * 3, [NAN] * 3),
        (np.full((1, 3), 0.1, dtype=np.float32), [float(np.float32(0.1))]),  # summed in float64
    ],
)
def test_what_is_missing_is_neither_an_advantage_nor_a_loss(rewards, expected):
    assert fitness(np.array(rewards)) == pytest.approx(expected, rel=1e-15, nan_ok=True)


def test_fit_recovers_the_means_of_an_additive_table_with_holes(additive):
    rewards, truth = additive
    rewards[np.random.default_rng(3).random(rewards.shape) < 0.4] = NAN
    assert np.isnan(rewards).sum() > 30
    np.testing.assert_allclose(fitness(rewards), truth, atol=1e-12)


def test_fit_solves_the_least_squares_problem():
    rng = np.random.default_rng(4)
    rewards = rng.normal(size=(7, 5))
    rewards[rng.random(rewards.shape) < 0.25] = NAN
    rows, columns = np.nonzero(~np.isnan(rewards))
    design = np.zeros((len(rows), 12))
    design[np.arange(len(rows)), rows] = 1
    design[np.arange(len(rows)), 7 + columns] = 1
    effects = np.linalg.lstsq(design, rewards[rows, columns])[0]
    expected = effects[:7] + effects[7:].mean()
    np.testing.assert_allclose(fitness(rewards), expected, atol=1e-12)


def test_complete_members_keep_their_plain_mean_when_others_lose_data(additive):
    rewards, _ = additive
    rewards[3, 4] = rewards[5, 0] = NAN
    complete = ~np.isnan(rewards).any(axis=1)
    assert np.array_equal(fitness(rewards)[complete], fitness(rewards[complete]))


def test_groups_that_share_no_example_are_equal_on_average():
    rewards = np.array([[1.0, NAN], [3.0, NAN], [NAN, 101.0], [NAN, 105.0]])
    found = fitness(rewards)
    assert found[1] - found[0] == pytest.approx(2)
    assert found[3] - found[2] == pytest.approx(4)
    assert found[:2].mean() == pytest.approx(found[2:].mean())


def test_fitness_leaves_the_rewards_alone():
    rewards = np.array([[1.0, NAN], [2.0, 5.0]])
    before = rewards.copy()
    fitness(rewards)
    assert np.array_equal(rewards, before, equal_nan=True)


def test_infinite_reward_is_refused_by_name():
    with pytest.raises(ValueError, match="member 1 on example 0 is -inf"):
        fitness(np.array([[1.0, 2.0], [-math.inf, 2.0]]))


def test_rewards_without_examples_are_refused():
    with pytest.raises(ValueError, match="batch >= 1"):
        fitness(np.empty((3, 0)))


# --- utilities ---


def test_values_a_rounding_error_apart_share_their_rank():
    third = 1 / 3
    shaped = centered_ranks(CenteredRanks(), np.array([third, np.nextafter(third, 1), -2.0]))
    assert shaped.tolist() == [0.25, 0.25, -0.5]


def test_an_outlier_does_not_make_the_others_tie():
    assert centered_ranks(CenteredRanks(), np.array([-1e12, 1.0, 2.0])).tolist() == [-0.5, 0.0, 0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_higher_fitness_never_gets_a_lower_utility(kind):
    values = np.sort(np.random.default_rng(8).normal(size=40))
    assert np.all(np.diff(utilities(kind, values, antithetic=True)) >= 0)


@pytest.mark.parametrize("kind", KINDS)
def test_utilities_do_not_depend_on_who_comes_first(kind):
    rng = np.random.default_rng(9)
    values, order = rng.integers(0, 9, size=40) / 9, rng.permutation(40)
    shaped = utilities(kind, values, antithetic=False)
    assert np.array_equal(utilities(kind, values[order], antithetic=False), shaped[order])


@pytest.mark.parametrize("kind", KINDS)
def test_missing_member_gets_0_and_changes_nothing_for_the_others(kind):
    values = np.array([4.0, NAN, 1.0, 2.0, NAN, 9.0])
    present = ~np.isnan(values)
    shaped = utilities(kind, values, antithetic=False)
    assert shaped[~present].tolist() == [0.0, 0.0]
    assert np.array_equal(shaped[present], utilities(kind, values[present], antithetic=False))


@pytest.mark.parametrize("kind", KINDS)
def test_antithetic_pair_is_complete_or_dropped(kind):
    values = np.array([4.0, 3.0, 7.0, NAN, 1.0, 2.0])
    shaped = utilities(kind, values, antithetic=True)
    assert shaped[2:4].tolist() == [0.0, 0.0]
    rest = utilities(kind, values[[0, 1, 4, 5]], antithetic=True)
    assert np.array_equal(shaped[[0, 1, 4, 5]], rest)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [[], [3.0], [NAN, NAN], [NAN, 3.0]])
def test_nothing_to_compare_gives_zeros(kind, values):
    shaped = utilities(kind, np.array(values, dtype=float), antithetic=False)
    assert shaped.tolist() == [0.0] * len(values)


def test_odd_population_cannot_be_pairs():
    with pytest.raises(ValueError, match="antithetic=false"):
        utilities("z_score", np.zeros(3), antithetic=True)


# --- mistakes of the field ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -2000.0, 0.1, 1e-30])
def test_mistake_12_zero_variance_gives_exactly_zero(kind, value):
    assert not utilities(kind, np.full(30, value), antithetic=True).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [1.0, -2000.0, 0.1])
def test_mistake_12_near_ties_are_not_blown_up(kind, value):
    noise = np.random.default_rng(10).uniform(-0.5, 0.5, size=30)
    values = value * (1 + RESOLUTION * noise)
    assert len(set(values)) == 30
    assert not utilities(kind, values, antithetic=True).any()


@pytest.mark.parametrize("kind", KINDS)
def test_mistake_12_the_smallest_real_difference_still_counts(kind):
    rewards = np.full((30, 500), -300.0)  # one character of 500 answers 300 too long
    rewards[4, 17] += 1
    shaped = shaping.utilities(KINDS[kind], of_rewards(rewards), antithetic=True)
    assert np.argmax(shaped) == 4
    assert shaped[4] > 0


def test_mistake_13_ties_are_not_broken_by_position():
    values = np.array([0.0, 1.0] * 8 + [0.0] * 4)
    for order in (np.arange(20), np.arange(20)[::-1]):
        shaped = centered_ranks(CenteredRanks(), values[order])
        assert len(set(shaped[values[order] == 0])) == 1
        assert len(set(shaped[values[order] == 1])) == 1


def test_mistake_13_ties_carry_no_gradient():
    values = np.array([1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    shaped = utilities("centered_ranks", values, antithetic=True)
    assert (shaped[0::2] - shaped[1::2]).tolist() == [0.0] * 4
