"""Whether a run is getting worse: found where it is, and luck alone is not called so."""

import math
from dataclasses import replace

import numpy as np
import pytest

from germline.evaluation.score_decline import find_score_decline
from germline.evaluation.score_decline_cause import RunCurves
from germline.types import HeldOutScore

pytestmark = pytest.mark.usefixtures("graded_in_process")

FALLING = (0.31, 0.78, 0.80, 0.59, 0.61, 0.50, 0.47, 0.41, 0.39, 0.38)
"""configs/countdown.yaml over 250 generations, scored every 25 of them."""

HOLDING = (0.31, 0.70, 0.85, 0.85, 0.85, 0.84, 0.84, 0.84, 0.84, 0.83)
"""The same at a quarter of the learning rate."""


def score(updates, values, *, higher=True, reward=None):
    array = np.asarray(values, float)
    mean = float(array.mean())
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
    reward = (mean if higher else -mean) if reward is None else reward
    return HeldOutScore(
        updates,
        "exact",
        mean,
        error,
        len(array),
        reward,
        proportion=higher,
        higher_is_better=higher,
        values=tuple(array.tolist()),
    )


def shares(curve, examples=100, seed=0, every=25):
    """Score a share of right answers again and again: examples differ in how hard they are."""
    random = np.random.default_rng(seed)
    hard = random.random(examples)
    found = []
    for place, share in enumerate(curve):
        ranks = np.argsort(np.argsort(hard + 0.15 * random.normal(size=examples)))
        found.append(score(every * place, ranks < round(share * examples)))
    return found


def without_values(scores):
    return [replace(one, values=()) for one in scores]


def alarms(scores, **curves):
    """Look after every score, as a live view does; return after how many there was an alarm."""
    counts = range(1, len(scores) + 1)
    return [
        n for n in counts if find_score_decline(RunCurves(scores=scores[:n], **curves)) is not None
    ]


def fitness_alarms(fitness, **curves):
    counts = range(1, len(fitness) + 1)
    return [
        n
        for n in counts
        if find_score_decline(RunCurves(fitness=fitness[:n], **curves)) is not None
    ]


# --- falls are found


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_falls_is_found_soon_and_never_let_go(seed):
    found = alarms(shares(FALLING, seed=seed))
    assert found == [5, 6, 7, 8, 9, 10]  # from generation 100 on
    last = find_score_decline(RunCurves(scores=shares(FALLING, seed=seed)))
    assert last is not None
    assert (last.measure, last.since, last.examples) == ("held-out score", 50, 100)
    assert last.best == pytest.approx(0.80)
    assert last.now == pytest.approx(0.385)
    assert last.loss == pytest.approx(0.415)
    assert last.low < 0.415 < last.high
    assert last.low > 0.2
    assert last.chance < 1e-3


def test_without_the_values_of_examples_it_takes_longer():
    found = alarms(without_values(shares(FALLING)))
    assert found
    assert found[0] > 5
    last = find_score_decline(RunCurves(scores=without_values(shares(FALLING))))
    assert last is not None
    assert last.examples == 0


def test_a_cost_that_rises_is_a_fall():
    random = np.random.default_rng(0)
    base = random.random(50)
    costs = [
        score(10 * place, base + level + 0.1 * random.normal(size=50), higher=False)
        for place, level in enumerate((5.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.9, 7.0))
    ]
    found = find_score_decline(RunCurves(scores=costs))
    assert found is not None
    assert found.best < found.now
    assert found.loss > 0


def test_scores_of_which_nobody_knows_the_direction_are_judged_by_their_reward():
    unknown = [
        replace(one, higher_is_better=None, mean=1 - one.mean, values=())
        for one in shares(FALLING, examples=2000)
    ]
    found = find_score_decline(RunCurves(scores=unknown))
    assert found is not None
    assert found.since == 50


@pytest.mark.parametrize("seed", range(5))
def test_training_fitness_that_falls_is_found(seed):
    random = np.random.default_rng(seed)
    climb, fall = np.linspace(0.3, 0.97, 20), np.linspace(0.97, 0.53, 220)
    fitness = np.concatenate([climb, fall]) + 0.03 * random.normal(size=240)
    found = fitness_alarms(fitness.tolist())
    assert found[0] <= 120
    last = find_score_decline(RunCurves(fitness=fitness.tolist()))
    assert last is not None
    assert last.measure == "training fitness"
    assert 20 <= last.since <= 60


COLLAPSING = (
    *(0.28, 0.4, 0.52, 0.41, 0.61, 0.32, 0.5, 0.2, 0.38, 0.15, 0.33, 0.05),
    *(0.17, 0.02, 0.06, 0.01, 0.03, 0, 0.01, 0, 0, 0, 0, 0, 0),
)
"""configs/arithmetic.yaml at too large a learning rate, scored every 2 generations: 0.61 to 0."""

LOST_AT_ONCE = (0.98, 0.4, 0.11, 0.33, 0.08, 0.2, 0.02, 0.05, 0.01, 0, 0, 0, 0)
"""The same from weights that have learned the task: the best score is that before training."""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("curve", "best", "soon"), [(COLLAPSING, 8, 17), (LOST_AT_ONCE, 0, 6)])
def test_a_collapse_is_found_during_a_run_with_frequent_scores(curve, best, soon, seed):
    scores = shares(curve, seed=seed, every=2)
    found = alarms(scores)
    assert found
    assert found[0] <= soon
    assert found == list(range(found[0], len(curve) + 1))
    last = find_score_decline(RunCurves(scores=scores))
    assert last is not None
    assert last.since == best
    assert -1 <= last.low < last.loss < last.high <= 1
    assert last.chance < 1e-3


@pytest.mark.parametrize("count", [25, 50])
def test_frequent_scores_that_differ_by_luck_alone_are_no_fall(count):
    random = np.random.default_rng(count)
    found = 0
    for _ in range(40):
        chances = random.random(100)
        found += bool(alarms([score(at, random.random(100) < chances) for at in range(count)]))
    assert found <= 1


def test_a_share_cannot_decline_by_more_than_1():
    last = find_score_decline(RunCurves(scores=shares((0.99, 0.3, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0))))
    assert last is not None
    assert last.high == 1


# --- luck is not


@pytest.mark.parametrize(
    ("examples", "spread"),
    [(100, 1.0), (8, 1.0), pytest.param(2000, 1.0, marks=pytest.mark.slow), (100, 0.2)],
)
def test_scores_that_differ_by_luck_alone_are_no_fall(examples, spread):
    """Answers are right by chance, of every example with a probability of its own: 20 scores."""
    random = np.random.default_rng(examples)
    runs = []
    for _ in range(100):
        chances = 0.5 + spread * (random.random(examples) - 0.5)
        runs.append([score(at, random.random(examples) < chances) for at in range(20)])
    assert sum(bool(alarms(run)) for run in runs) <= 2
    assert sum(bool(alarms(without_values(run))) for run in runs) <= 2


def test_metrics_that_are_no_shares_do_not_fall_by_luck_either():
    random = np.random.default_rng(0)
    runs = []
    for _ in range(100):
        base = random.normal(size=30)
        runs.append([score(at, base + random.normal(size=30), higher=False) for at in range(20)])
    assert sum(bool(alarms(run)) for run in runs) <= 2


@pytest.mark.parametrize("examples", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_weights_that_stray_around_a_plateau_are_no_fall(examples):
    random = np.random.default_rng(1)
    levels = 0.8 + 0.02 * random.normal(size=(100, 19))
    runs = [shares((0.3, *row), examples, seed) for seed, row in enumerate(levels.tolist())]
    assert sum(bool(alarms(run)) for run in runs) <= 4


@pytest.mark.parametrize("curve", [HOLDING, (0.31, 0.84, 0.85, 0.83, 0.80, 0.80, 0.82, 0.80)])
def test_curves_that_hold_are_no_fall(curve):
    assert not any(alarms(shares(curve, seed=seed)) for seed in range(20))


@pytest.mark.parametrize("correlation", [0.0, 0.3])
def test_fitness_that_differs_by_luck_alone_is_no_fall(correlation):
    random = np.random.default_rng(2)
    found = 0
    for _ in range(100):
        noise = random.normal(size=250)
        for place in range(1, 250):
            noise[place] += correlation * noise[place - 1]
        fitness = (0.5 + 0.03 * noise).tolist()
        found += any(find_score_decline(RunCurves(fitness=fitness[:n])) for n in range(30, 251, 10))
    assert found <= 4


def test_a_loss_of_little_that_was_gained_is_not_told():
    climb = shares((0.1, 0.9, 0.86, 0.86, 0.86, 0.86), examples=5000)
    assert not alarms(climb)
    assert alarms(shares((0.88, 0.9, 0.86, 0.86, 0.86, 0.86), examples=20000))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_scores_say_nothing(count):
    assert find_score_decline(RunCurves(scores=shares(FALLING)[2 : 2 + count])) is None


def test_nothing_at_all_and_constants_say_nothing():
    assert find_score_decline(RunCurves()) is None
    assert find_score_decline(RunCurves(fitness=[None] * 100)) is None
    assert find_score_decline(RunCurves(fitness=[0.5] * 100)) is None
    assert find_score_decline(RunCurves(scores=[score(at, [1.0] * 9) for at in range(9)])) is None


def test_a_held_out_score_of_one_example_says_nothing():
    falling = [score(at, [value]) for at, value in enumerate((0.0, 1.0, 0.0, 0.0, 0.0, 0.0))]
    assert find_score_decline(RunCurves(scores=falling)) is None


def test_missing_values_are_left_out_of_pairs():
    scores = shares(FALLING)
    holes = [replace(one, values=(math.nan, *one.values[1:])) for one in scores]
    found = find_score_decline(RunCurves(scores=holes))
    assert found is not None
    assert found.examples == 99


FITNESS = [*np.linspace(0.3, 0.9, 20), *np.linspace(0.9, 0.4, 80)]


def test_members_of_a_growing_sigma_are_less_fit_and_no_fall():
    assert find_score_decline(RunCurves(fitness=FITNESS, sigma=[0.1] * 100)) is not None
    assert (
        find_score_decline(RunCurves(fitness=FITNESS, sigma=np.linspace(0.1, 0.5, 100).tolist()))
        is None
    )


def test_fitness_that_falls_while_the_weight_of_the_cost_grows_is_no_fall():
    grown = [*np.linspace(1, 1.001, len(FITNESS))]
    assert find_score_decline(RunCurves(fitness=FITNESS, cost_weight=grown)) is None
    assert find_score_decline(RunCurves(fitness=FITNESS, cost_weight=[1.0] * len(FITNESS)))


def test_held_out_scores_that_hold_contradict_the_fitness():
    holding = shares((0.3, 0.8, 0.8, 0.81, 0.82), every=25)
    assert find_score_decline(RunCurves(fitness=FITNESS, scores=holding)) is None
    assert find_score_decline(RunCurves(fitness=FITNESS, scores=holding[:2])) is not None


# --- why


def cause(**curves):
    known = {"scores": shares(FALLING), "fitness": [0.5] * 240, "agreement": [0.4] * 240}
    found = find_score_decline(RunCurves(**(known | curves)))
    assert found is not None
    return found.cause


def test_the_walk_is_the_cause_where_it_has_come_to_the_edge():
    walk = np.linspace(0, 0.02, 240).tolist()
    assert cause(walk=walk, edge=0.016) == "walk"
    assert cause(walk=walk, edge=0.2) == "unknown"
    assert cause(walk=walk) == "unknown"


def test_halves_that_do_not_agree_since_the_best_are_no_signal():
    assert cause(agreement=[0.5] * 50 + [0.0, 0.04, -0.1] * 64) == "no signal"
    assert cause(agreement=[0.0] * 50 + [0.5] * 190) == "unknown"
    assert cause(agreement=[None] * 240) == "unknown"


def test_fitness_that_rises_meanwhile_is_overfitting():
    rising = np.linspace(0.5, 0.9, 240).tolist()
    assert cause(fitness=rising) == "overfit"
    assert cause(fitness=rising, walk=[0.1] * 240, edge=0.1) == "overfit"


def test_a_reward_that_rises_where_the_metric_falls_is_hacked():
    scores = [replace(one, reward=0.3 + 0.05 * place) for place, one in enumerate(shares(FALLING))]
    assert cause(scores=scores) == "hack"


def test_texts_that_become_empty_while_fitness_rises_are_a_hack():
    rising = np.linspace(0.5, 0.9, 240).tolist()
    assert cause(fitness=rising, empty=[0.0] * 120 + [0.6] * 120) == "hack"
    assert cause(empty=[0.0] * 120 + [0.6] * 120) == "unknown"


def test_falling_fitness_alone_has_causes_too():
    found = find_score_decline(
        RunCurves(fitness=FITNESS, agreement=[0.0] * 100, walk=[0.1] * 100, edge=0.1)
    )
    assert found is not None
    assert found.cause == "walk"
