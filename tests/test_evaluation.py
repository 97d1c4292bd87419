"""Held-out scores: the task's metric over examples, with a standard error, and nothing invented."""

import math
from dataclasses import replace

import numpy as np
import pytest

from germline.config import MicrobatchSettings
from germline.evaluation import confidence_interval, mean_and_error, score_center
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


def lost(_grade):
    """Lose everything, as a scorer that is down does."""
    return Grade(math.nan, {}, "scorer: connection refused")


def without_reward(grade):
    """Lose the reward, but not the other parts of the rubric."""
    return Grade(math.nan, {"helpful": math.nan, **grade.parts}, "helpful: connection refused")


def without_metric(grade):
    """Lose the metric, but not the reward, as a scorer of weight 0 does."""
    return replace(grade, parts={TASK.metric: math.nan})


def scored(places=(), change=lost, examples=EXAMPLES):
    fleet = LocalFleet(make_engine(CONFIG), Changed(places, change), MicrobatchSettings())
    return score_center(fleet.evaluate_center, TASK, examples, DECODING, 12)


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


def test_what_is_missing_counts_as_nothing_not_as_zero():
    whole = scored()[1]
    score, _ = scored((0, 5))
    kept = [one.grade.parts["length_difference"] for one in whole.rollouts]
    kept = [value for place, value in enumerate(kept) if place not in (0, 5)]
    assert score.n == 7
    assert score.mean == pytest.approx(np.mean(kept), rel=1e-15)
    assert score.reward == pytest.approx(-np.mean(kept), rel=1e-15)


def test_with_everything_missing_there_is_no_score():
    score, _ = scored(range(9))
    assert score.n == 0
    assert np.isnan([score.mean, score.standard_error, score.reward]).all()


def test_a_score_that_a_scorer_loses_leaves_a_metric_of_another_part():
    score, evaluation = scored((1, 2), without_reward)
    whole = scored()[0]
    assert (score.n, score.mean, score.values) == (9, whole.mean, whole.values)
    assert score.reward == np.nanmean(evaluation.rewards) != whole.reward
    score, _ = scored((1, 2), without_reward, EXAMPLES[1:3])
    assert (score.n, math.isnan(score.reward)) == (2, True)


def test_a_metric_that_is_missing_is_left_out_of_the_mean():
    score, _ = scored((0,), without_metric)
    whole = scored()[0]
    assert score.n == 8
    assert score.mean == pytest.approx(np.mean(whole.values[1:]), rel=1e-15)
    assert score.reward == whole.reward


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [
        (1.0, 100, 100 / (100 + 1.96**2), 1.0),
        (0.0, 100, 0.0, 1.96**2 / (100 + 1.96**2)),
        (0.5, 10, 0.2366, 0.7634),
    ],
)
def test_the_interval_of_a_share_is_wilsons(share, n, low, high):
    score = HeldOutScore(0, "exact", share, 0.0, n, share, proportion=True)
    ends = confidence_interval(score)
    assert ends[0] == pytest.approx(low, abs=5e-5)
    assert ends[1] == pytest.approx(high, abs=5e-5)
    assert ends[0] <= share <= ends[1]


def test_the_interval_of_a_mean_is_1_96_standard_errors_to_each_side():
    ends = confidence_interval(HeldOutScore(0, "length", 5.0, 0.5, 10, -5.0))
    assert ends == (5 - 0.98, 5 + 0.98)
    assert math.isnan(confidence_interval(HeldOutScore(0, "length", 5.0, math.nan, 1, -5.0))[0])


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
