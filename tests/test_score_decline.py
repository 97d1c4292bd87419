"""Whether a held-out score has declined: found where it has, and chance alone is not called so."""

import math
from dataclasses import replace

import numpy as np
import pytest

from germline.evaluation.held_out import score_of_values
from germline.evaluation.score_difference import find_score_decline

FALLING = (0.31, 0.78, 0.80, 0.59, 0.61, 0.50, 0.47, 0.41, 0.39, 0.38)
"""configs/countdown.yaml over 250 generations, scored every 25 of them."""

HOLDING = (0.31, 0.70, 0.85, 0.85, 0.85, 0.84, 0.84, 0.84, 0.84, 0.83)
"""The same at a quarter of the learning rate."""


def score(updates, values, *, higher=True):
    numbers = [float(value) for value in values]
    return score_of_values(updates, "exact", numbers, higher_is_better=higher)


def shares(curve, examples=100, seed=0, every=25):
    """Score a share of right answers again and again: examples differ in how hard they are."""
    random = np.random.default_rng(seed)
    hard = random.random(examples)
    found = []
    for place, share in enumerate(curve):
        ranks = np.argsort(np.argsort(hard + 0.15 * random.normal(size=examples)))
        found.append(score(every * place, ranks < round(share * examples)))
    return found


def alarms(scores):
    """Test after every score, as a training does; return after how many there was an alarm."""
    return [n for n in range(1, len(scores) + 1) if find_score_decline(scores[:n])]


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_falls_is_found_soon_and_measured(seed):
    scores = shares(FALLING, seed=seed)
    found = alarms(scores)
    assert found[0] <= 6
    assert found[-5:] == [6, 7, 8, 9, 10]
    last = find_score_decline(scores)
    assert last is not None
    assert (last["since"], last["examples"]) == (50, 100)
    assert (last["best"], last["now"]) == pytest.approx((0.80, 0.38))
    assert 0.2 < last["low"] < 0.42 < last["high"]
    assert last["p_value"] < 1e-3


def test_a_cost_that_rises_is_a_decline():
    random = np.random.default_rng(0)
    base = random.random(50)
    costs = [
        score(10 * place, base + level + 0.1 * random.normal(size=50), higher=False)
        for place, level in enumerate((5.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.9, 7.0))
    ]
    found = find_score_decline(costs)
    assert found is not None
    assert found["best"] < found["now"]
    assert found["low"] > 0


@pytest.mark.parametrize("examples", [8, 100])
def test_scores_that_differ_by_chance_alone_are_no_decline(examples):
    """Answers are right by chance, of every example with a probability of its own: 20 scores."""
    random = np.random.default_rng(examples)
    runs = []
    for _ in range(200):
        chances = random.random(examples)
        runs.append([score(at, random.random(examples) < chances) for at in range(20)])
    assert sum(bool(alarms(run)) for run in runs) <= 2


@pytest.mark.parametrize("curve", [HOLDING, (0.31, 0.84, 0.85, 0.83, 0.80, 0.80, 0.82, 0.80)])
def test_curves_that_hold_are_no_decline(curve):
    assert not any(alarms(shares(curve, seed=seed)) for seed in range(20))


def test_a_loss_of_little_that_was_gained_is_not_told():
    assert not alarms(shares((0.1, 0.9, 0.86, 0.86), examples=5000))
    assert alarms(shares((0.88, 0.9, 0.86, 0.86), examples=20000))


def test_few_scores_and_few_examples_are_never_certain():
    assert find_score_decline([]) is None
    assert find_score_decline(shares(FALLING)[2:3]) is None
    assert not alarms([score(at, [value]) for at, value in enumerate((0, 1, 0, 0, 0, 0))])
    assert not alarms([score(at, [value] * 3) for at, value in enumerate((0, 1, 0, 0, 0, 0))])
    assert not alarms([score(at, [1.0] * 9) for at in range(9)])


def test_missing_values_are_left_out_of_pairs():
    holes = [replace(one, values=(math.nan, *one.values[1:])) for one in shares(FALLING)]
    found = find_score_decline(holes)
    assert found is not None
    assert found["examples"] == 99
    assert find_score_decline([replace(one, values=()) for one in shares(FALLING)]) is None
