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
