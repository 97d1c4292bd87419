"""Statistics of scores, against their definitions and against scipy."""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.stats

from germline.evaluation.statistics import (
    best_of_k,
    bootstrap_interval,
    interquartile_mean,
    majority_at_k,
    mcnemar,
    paired_bootstrap,
    pass_at_k,
    probability_of_improvement,
    stratified_interval,
    wilson_interval,
)

RNG = np.random.default_rng(35)


@pytest.mark.parametrize("statistic", [np.mean, np.median, np.std])
def test_the_bootstrap_is_the_bca_of_scipy(statistic) -> None:
    values = RNG.exponential(size=40)
    half = scipy.stats.t.ppf(0.975, 39) * math.sqrt(40 / 39)  # which few values need
    level = 1 - 2 * scipy.stats.norm.sf(half)
    expected = scipy.stats.bootstrap(
        (values,), statistic, n_resamples=50_000, confidence_level=level, rng=1
    )
    low, high = bootstrap_interval(values, statistic, resamples=50_000)
    wanted = expected.confidence_interval
    assert low == pytest.approx(wanted.low, abs=0.04 * (wanted.high - wanted.low))
    assert high == pytest.approx(wanted.high, abs=0.04 * (wanted.high - wanted.low))
    assert bootstrap_interval(values, statistic, resamples=50_000) == (low, high)


@pytest.mark.parametrize(("draw", "count"), [(RNG.exponential, 60), (RNG.normal, 8)])
def test_the_bootstrap_covers_what_it_says_of_skewed_and_of_few_values(draw, count) -> None:
    mean = 1 if draw == RNG.exponential else 0
    drawn = [bootstrap_interval(one, resamples=1000) for one in draw(size=(400, count))]
    assert 0.9 < np.mean([low < mean < high for low, high in drawn]) < 0.98


def test_equal_values_and_a_single_one() -> None:
    assert bootstrap_interval([0.5] * 9) == (0.5, 0.5)
    assert all(map(math.isnan, bootstrap_interval([0.5])))
    assert all(map(math.isnan, stratified_interval(interquartile_mean, [0.5])))


def test_pairs_narrow_the_interval() -> None:
    hardness = RNG.normal(scale=9, size=50)
    low, high = paired_bootstrap(hardness + 1 + RNG.normal(size=50), hardness)
    assert 0.3 < low < 1 < high < 1.7


@pytest.mark.parametrize(("right", "count"), [(0, 7), (3, 10), (50, 50)])
def test_wilson_is_that_of_scipy(right, count) -> None:
    wanted = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right / count, count) == pytest.approx((wanted.low, wanted.high), 1e-4)


@pytest.mark.parametrize(("higher", "lower"), [(0, 0), (5, 0), (3, 9), (40, 20), (700, 600)])
def test_mcnemar_is_the_binomial_test(higher, lower) -> None:
    wanted = scipy.stats.binomtest(higher, higher + lower).pvalue if higher else 1.0
    assert mcnemar(higher, lower) == pytest.approx(wanted, rel=1e-9)


def test_the_interquartile_mean_is_that_of_scipy() -> None:
    for shape in ((3, 1), (5, 2), (5, 7)):
        scores = RNG.normal(size=shape)
        assert interquartile_mean(scores) == pytest.approx(
            scipy.stats.trim_mean(scores, 0.25, axis=None)
        )


def test_the_stratified_bootstrap_draws_every_task_separately() -> None:
    """Tasks that differ widen nothing; the variance is the mean of those within tasks."""
    scores = RNG.normal(loc=[0, 10, 20, 30], size=(20, 4))
    low, high = stratified_interval(lambda table: float(table.mean()), scores)
    error = math.sqrt((scores.var(axis=0) / 20).sum() / 16)
    assert (high - low) == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert low < scores.mean() < high


def test_the_probability_of_improvement_is_mann_and_whitneys() -> None:
    one, other = RNG.integers(5, size=(6, 3)), RNG.integers(5, size=(4, 3))
    wanted = scipy.stats.mannwhitneyu(one, other, axis=0).statistic / (6 * 4)
    assert probability_of_improvement(one, other) == pytest.approx(np.mean(wanted))
    assert probability_of_improvement([1.0, 2.0], [2.0, 0.0]) == (0 + 1 + 0.5 + 1) / 4
    low, high = stratified_interval(probability_of_improvement, one, other)
    assert 0 <= low < np.mean(wanted) < high <= 1


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_pass_at_k_and_the_best_of_k_are_means_over_all_subsets(k) -> None:
    right = (RNG.random((6, 5)) < 0.3).astype(float)
    for values in (right, RNG.normal(size=(6, 5))):
        wanted = np.mean([values[list(some)].max(0) for some in combinations(range(6), k)], axis=0)
        assert best_of_k(values, k) == pytest.approx(wanted)
    counts = [pass_at_k(6, int(c), k) for c in right.sum(axis=0)]
    assert best_of_k(right, k) == pytest.approx(counts)
    assert best_of_k(right, 1) == pytest.approx(right.mean(axis=0))


def test_the_majority_decides_and_samples_without_an_answer_abstain() -> None:
    values = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.5], [0.0, 0.0, 0.0]])
    answers = [["7", None, None], ["5", None, None], ["7", "3", None], ["5", "4", None]]
    # Two of each: a tie; one vote against one; no vote at all.
    assert majority_at_k(values, answers, 4).tolist() == [0.5, 0.5, 0.125]
    assert majority_at_k(values, answers, 3).tolist() == [1.0, 1.0, pytest.approx(0.5 / 3)]
    # Groups of two are (first, second) and (third, fourth).
    assert majority_at_k(values, answers, 2).tolist() == [0.5, 0.25, 0.125]
