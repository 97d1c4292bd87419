"""Statistics of scores, against their definitions and against scipy."""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.stats

from germline.evaluation.score_difference import certain_sign, difference_interval
from germline.evaluation.statistics import (
    best_of_k,
    bootstrap_interval,
    majority_at_k,
    mcnemar,
    probability_of_improvement,
    wilson_interval,
)

RNG = np.random.default_rng(35)


def test_the_bootstrap_is_the_bca_of_scipy() -> None:
    values = RNG.exponential(size=40)
    half = scipy.stats.t.ppf(0.975, 39) * math.sqrt(40 / 39)  # which few values need
    level = 1 - 2 * scipy.stats.norm.sf(half)
    expected = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=50_000, confidence_level=level, rng=1
    ).confidence_interval
    width = expected.high - expected.low
    assert bootstrap_interval(values) == pytest.approx(expected, abs=0.04 * width)


@pytest.mark.parametrize(("draw", "count"), [(RNG.exponential, 60), (RNG.normal, 8)])
def test_the_bootstrap_covers_what_it_says_of_skewed_and_of_few_values(draw, count) -> None:
    mean = 1 if draw == RNG.exponential else 0
    drawn = [bootstrap_interval(one) for one in draw(size=(400, count))]
    assert 0.9 < np.mean([low < mean < high for low, high in drawn]) < 0.98


def test_equal_values_and_a_single_one() -> None:
    assert bootstrap_interval([0.5] * 9) == (0.5, 0.5)
    assert all(map(math.isnan, bootstrap_interval([0.5])))


@pytest.mark.parametrize(("right", "count"), [(0, 7), (3, 10), (50, 50)])
def test_wilson_is_that_of_scipy(right, count) -> None:
    wanted = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right / count, count) == pytest.approx((wanted.low, wanted.high), 1e-4)


@pytest.mark.parametrize(("higher", "lower"), [(0, 0), (5, 0), (3, 9), (40, 20), (700, 600)])
def test_mcnemar_is_the_binomial_test(higher, lower) -> None:
    wanted = scipy.stats.binomtest(higher, higher + lower).pvalue if higher else 1.0
    assert mcnemar(higher, lower) == pytest.approx(wanted, rel=1e-9)


def test_the_probability_of_improvement_is_mann_and_whitneys() -> None:
    one, other = RNG.integers(5, size=9), RNG.integers(5, size=7)
    wanted = scipy.stats.mannwhitneyu(one, other).statistic / (9 * 7)
    found, (low, high) = probability_of_improvement(one, other)
    assert found == pytest.approx(wanted)
    assert 0 <= low < found < high <= 1
    assert probability_of_improvement([1.0, 2.0], [2.0, 0.0])[0] == (0 + 1 + 0.5 + 1) / 4
    assert all(map(math.isnan, probability_of_improvement([1.0], [2.0, 0.0])[1]))


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_the_best_of_k_is_the_mean_over_all_subsets(k) -> None:
    right = (RNG.random((6, 5)) < 0.3).astype(float)
    for values in (right, RNG.normal(size=(6, 5))):
        wanted = np.mean([values[list(some)].max(0) for some in combinations(range(6), k)], axis=0)
        assert best_of_k(values, k) == pytest.approx(wanted)
    assert best_of_k(right, 1) == pytest.approx(right.mean(axis=0))


def test_the_majority_decides_and_samples_without_an_answer_abstain() -> None:
    values = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.5], [0.0, 0.0, 0.0]])
    answers = [["7", None, None], ["5", None, None], ["7", "3", None], ["5", "4", None]]
    # Two of each: a tie; one vote against one; no vote at all.
    assert majority_at_k(values, answers).tolist() == [0.5, 0.5, 0.125]
    assert majority_at_k(values[:3], answers[:3]).tolist() == [1.0, 1.0, pytest.approx(0.5 / 3)]


@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.02, 0.0), (0.3, 0.05), (0.2, 0.2)])
def test_the_interval_of_a_paired_difference_covers_what_it_says(shares) -> None:
    better, worse = shares
    drawn = RNG.choice([1.0, -1.0, 0.0], p=[better, worse, 1 - better - worse], size=(400, 40))
    ends = [difference_interval(tuple(one), proportion=True) for one in drawn.tolist()]
    assert np.mean([low < better - worse < high for low, high in ends]) > 0.92
    assert all(high - low < 2 for low, high in ends)


def test_few_differences_have_a_two_sided_interval_and_none_has_no_interval() -> None:
    low, high = difference_interval((3.0, *[0.0] * 19))
    assert low < 0 < 0.15 < high
    assert all(map(math.isnan, difference_interval((0.0,) * 20)))
    assert difference_interval((0.0,) * 20, proportion=True) == pytest.approx((-0.089, 0.089), 1e-2)
    assert difference_interval((1.0,) * 30) == bootstrap_interval([1.0] * 30)
    assert certain_sign((0.0,) * 20) == certain_sign((1.0,) * 5 + (0.0,) * 30) == 0
    assert certain_sign((-1.0,) * 6 + (0.0,) * 30, proportion=True) == -1
