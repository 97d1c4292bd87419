"""Held-out scores: the task's metric over examples, with a standard error, and nothing invented."""

import math
from dataclasses import replace

import numpy as np
import pytest

from germline.config import Cell
from germline.evaluation import held_out, mean_and_error
from germline.fleet import LocalFleet
from germline.run.assembly import decoding, make_engine, make_task
from germline.types import Grade
from tests.toy_runs import GradedHere, settings

CONFIG = settings()
TASK = make_task(CONFIG.task)
EXAMPLES = TASK.examples("test")[:9]
DECODING = decoding(CONFIG, TASK)


class Losing(GradedHere):
    """Loses the rewards of some texts, as a scorer that is down does."""

    def __init__(self, task, lost):
        super().__init__(task)
        self.lost = lost
        self.seen = 0

    def _grade(self, text, example):
        self.seen += 1
        if self.seen - 1 in self.lost:
            return Grade(math.nan, {}, "scorer: connection refused")
        return super()._grade(text, example)


def scored(lost=(), examples=EXAMPLES):
    fleet = LocalFleet(make_engine(CONFIG), Losing(TASK, lost), Cell())
    return held_out(fleet, TASK, examples, DECODING, 12)


def test_mean_and_standard_error_are_those_of_the_metric_over_examples():
    score, evaluation = scored()
    values = [
        abs(len(rollout.completion.text) - len(example.answer))
        for rollout, example in zip(evaluation.rollouts, EXAMPLES, strict=True)
    ]
    assert score.mean == pytest.approx(np.mean(values), rel=1e-15)
    assert score.standard_error == pytest.approx(np.std(values, ddof=1) / 3, rel=1e-15)
    assert (score.n, score.generation, score.metric) == (9, 12, "length_difference")


def test_the_reward_is_reported_beside_the_metric():
    score, evaluation = scored()
    assert score.reward == evaluation.rewards.mean() == -score.mean


def test_what_is_missing_counts_as_nothing_not_as_zero():
    whole = scored()[1]
    score, _ = scored(lost=(0, 5))
    kept = [one.grade.parts["length_difference"] for one in whole.rollouts]
    kept = [value for place, value in enumerate(kept) if place not in (0, 5)]
    assert score.n == 7
    assert score.mean == pytest.approx(np.mean(kept), rel=1e-15)
    assert score.reward == pytest.approx(-np.mean(kept), rel=1e-15)


def test_with_everything_missing_there_is_no_score():
    score, _ = scored(lost=range(9))
    assert score.n == 0
    assert math.isnan(score.mean)
    assert math.isnan(score.standard_error)
    assert math.isnan(score.reward)


def test_one_example_has_no_standard_error():
    mean, error = mean_and_error([3.0])
    assert mean == 3.0
    assert math.isnan(error)


def test_held_out_luck_is_its_own():
    """Sampling for a score must not reuse the dice of a training generation."""
    fleet = LocalFleet(make_engine(CONFIG), GradedHere(TASK), Cell())
    luck = replace(DECODING, noise_name="held out")
    one = held_out(fleet, TASK, EXAMPLES, luck, 0)[1]
    other = held_out(fleet, TASK, EXAMPLES, DECODING, 0)[1]
    assert one.rollouts != other.rollouts
    assert one.rollouts == held_out(fleet, TASK, EXAMPLES, luck, 0)[1].rollouts
