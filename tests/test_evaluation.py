"""Held-out scores: the task's metric over examples, with a standard error, and nothing invented."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import scipy.stats

from germline.config import MicrobatchSettings
from germline.evaluation import confidence_interval, mean_and_error, score_center
from germline.evaluation.score_difference import certain_sign, difference_interval
from germline.evaluation.statistics import (
    best_of_k,
    bootstrap_interval,
    majority_at_k,
    mcnemar,
    probability_of_improvement,
    wilson_interval,
)
from germline.fleet import LocalFleet
from germline.run.build_parts import make_decoding, make_engine
from germline.tasks import make_task
from germline.types import Grade, HeldOutScore
from tests.toy_runs import GradedHere, settings

CONFIG = settings()
TASK = make_task(CONFIG.task)
EXAMPLES = TASK.examples("test")[:9]
DECODING = make_decoding(CONFIG, TASK)


class Changed(GradedHere):
    """Changes the grades of the examples at some places."""

    def __init__(self, places, change):
        super().__init__(TASK)
        self.indices = {EXAMPLES[place].index for place in places}
        self.change = change

    def _grade(self, text, example):
        grade = super()._grade(text, example)
        return self.change(grade) if example.index in self.indices else grade


def scored(places=(), change=None):
    fleet = LocalFleet(make_engine(CONFIG), Changed(places, change), MicrobatchSettings())
    return score_center(fleet.evaluate_center, TASK, EXAMPLES, DECODING, 12)


def test_mean_and_standard_error_are_those_of_the_metric_over_examples():
    score, evaluation = scored()
    values = [
        abs(len(rollout.completion.text) - len(example.answer))
        for rollout, example in zip(evaluation.rollouts, EXAMPLES, strict=True)
    ]
    assert score.mean == pytest.approx(np.mean(values), rel=1e-15)
    assert score.standard_error == pytest.approx(np.std(values, ddof=1) / 3, rel=1e-15)
    assert (score.n, score.generation, score.metric) == (9, 12, "length_difference")
    assert score.reward == evaluation.rewards.mean() == -score.mean
    mean, error = mean_and_error([3.0])
    assert (mean, math.isnan(error)) == (3.0, True)


@pytest.mark.parametrize(
    ("loss", "n", "has_reward"),
    [
        (lambda _: Grade(math.nan, {}, "scorer: connection refused"), 7, False),
        (lambda grade: Grade(math.nan, {"helpful": math.nan, **grade.parts}, "refused"), 9, False),
        (lambda grade: replace(grade, parts={TASK.metric: math.nan}), 7, True),
    ],
    ids=["all", "reward", "metric"],
)
def test_what_is_missing_counts_as_nothing_not_as_zero(loss, n, has_reward):
    whole, lost = (scored(places, loss) for places in ((), (0, 5)))
    values = [value for place, value in enumerate(whole[0].values) if n == 9 or place not in (0, 5)]
    assert (lost[0].n, lost[0].mean) == (n, pytest.approx(np.mean(values), rel=1e-15))
    assert lost[0].reward == np.nanmean(lost[1].rewards)
    assert (lost[0].reward == whole[0].reward) == has_reward
    nothing = scored(range(9), loss)[0]
    assert (nothing.n, math.isnan(nothing.mean)) == ((9, False) if n == 9 else (0, True))
    assert math.isnan(nothing.reward) != has_reward


def test_the_interval_of_a_mean_is_1_96_standard_errors_and_of_a_share_wilsons():
    ends = confidence_interval(HeldOutScore(0, "length", 5.0, 0.5, 10, -5.0))
    assert ends == (5 - 0.98, 5 + 0.98)
    assert math.isnan(confidence_interval(HeldOutScore(0, "length", 5.0, math.nan, 1, -5.0))[0])
    share = HeldOutScore(0, "exact", 0.5, 0.0, 10, 0.5, proportion=True)
    assert confidence_interval(share) == pytest.approx((0.2366, 0.7634), abs=5e-5)


def test_right_and_wrong_make_a_share_and_costs_do_not():
    config = settings("task=arithmetic")
    task = make_task(config.task)
    fleet = LocalFleet(make_engine(config), GradedHere(task), MicrobatchSettings())
    score, _ = score_center(
        fleet.evaluate_center, task, task.examples("test")[:9], make_decoding(config, task), 0
    )
    assert (score.mean, score.proportion) == (0.0, True)

    class AllRight(GradedHere):
        def _grade(self, text, example):
            return Grade(0.0, {"length": 0.0, "length_difference": 0.0})

    fleet = LocalFleet(make_engine(CONFIG), AllRight(TASK), MicrobatchSettings())
    assert score_center(fleet.evaluate_center, TASK, EXAMPLES, DECODING, 0)[0].proportion is False


def test_held_out_luck_is_its_own():
    """Sampling for a score must not reuse the dice of a training generation."""
    fleet = LocalFleet(make_engine(CONFIG), GradedHere(TASK), MicrobatchSettings())
    held_out = replace(DECODING, noise_stream="held out")
    one, other, again = (
        score_center(fleet.evaluate_center, TASK, EXAMPLES, decoding, 0)[1].rollouts
        for decoding in (held_out, DECODING, held_out)
    )
    assert one == again != other


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
