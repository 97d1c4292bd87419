"""Reward minus lambda times cost: lambda adapts to the center, is in the journal, and resumes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import germline
from germline.config import load_config
from germline.methods.lagrange_multiplier import LagrangeTerm
from germline.methods.reward_term import replace_grades
from germline.record import RunDirectory
from germline.run.build_parts import build_run_parts
from germline.types import Completion, Evaluation, Example, Grade, Rollout, Update
from tests.hang_limit import HANG_S
from tests.scripted_server import listening
from tests.small_runs import ROWS
from tests.toy_runs import LETTERS, SETTINGS, finish, journal

pytestmark = pytest.mark.usefixtures("graded_in_process")

WEIGHTS = {"reward": 1.0, "length": -0.5, "cost": -2.0, "shown": 0.0}
COST = {"kind": "length", "start": 0, "end": 12, "weight": -1}
REWARD = {"kind": "repetition", "ngram": 1, "weight": -1}
BATCH = [Example(index, f"{index}?", "", chat=True) for index in (4, 9)]


def settings(*overrides, **task):
    section = {
        "kind": "safe_alignment",
        "path": str(ROWS / "safe_alignment.jsonl"),
        "test_split": None,
        "scorers": {"reward": REWARD, "cost": COST},
        "max_new_tokens": 16,
        "stop": LETTERS,
        "temperature": 1.0,
        "lambda_lr": 0.5,
    }
    return load_config(SETTINGS | {"task": section | task}, overrides)


def toy_run(folder, *overrides, **task):
    return finish(germline.train(settings(*overrides, **task), folder))


def state(folder, name):
    return [json.loads(line).get(name) for line in journal(folder).splitlines()]


def rollout(member, example, reward, cost):
    parts = {"reward": float(reward), "length": 2.0, "cost": float(cost), "shown": 99.0}
    return Rollout(member, example, Completion("", (0,), "eos", 1), Grade(0.5, parts))


def evaluation(*members):
    """Rows of (reward, cost) by member, one per example of the batch."""
    rollouts = [
        rollout(member, example.index, *pair)
        for member, row in enumerate(members)
        for example, pair in zip(BATCH, row, strict=True)
    ]
    return Evaluation(np.full((len(members), 2), 0.5), tuple(rollouts), 0, 0.0)


def lagrange_term(**task):
    config = settings(**({"scorers": {"reward": REWARD, "cost": COST | {"weight": -2}}} | task))
    return LagrangeTerm(config.task, WEIGHTS)


def told(term, center=None, generation=0):
    """Let the term see one generation whose center has these costs; return what it records."""
    known = evaluation(*[[(1.0, 1.0)] * 2] * 6)
    of_center = None if center is None else evaluation([(0.0, cost) for cost in center])
    term.weigh(generation, BATCH, known, of_center)
    return term.learn(generation)


def next_lambda(term, generation):
    return told(term, [0.0, 0.0], generation)["lambda"]


def test_every_rollout_has_its_new_grade_and_what_is_lost_stays_missing():
    batch = [BATCH[0], BATCH[1], BATCH[0]]  # one example twice
    given = [rollout(member, index, 0, 0) for member, index in ((0, 4), (0, 9), (0, 4), (1, 4))]
    old = Evaluation(np.full((2, 3), 9.0), tuple(given), 5, 0.5)
    new = replace_grades(old, batch, lambda one: replace(one.grade, reward=1.0 + one.example))
    np.testing.assert_array_equal(new.rewards, [[5.0, 10.0, 5.0], [5.0, np.nan, 5.0]])
    assert [one.grade.reward for one in new.rollouts] == [5.0, 10.0, 5.0, 5.0]
    assert (new.tokens, new.decode_seconds) == (5, 0.5)
    assert {one.grade.reward for one in old.rollouts} == {0.5}


# --- the equations


def test_a_reward_is_that_of_all_other_parts_minus_lambda_times_the_cost():
    weighed, of_center = lagrange_term().weigh(
        0, BATCH, evaluation([(3, 1), (4, -1)]), evaluation([(0, 0), (1, 1)])
    )
    assert weighed.rewards.tolist() == [[3 - 1 - 2 * 1, 4 - 1 + 2 * 1]]
    assert of_center.rewards.tolist() == [[-1, 1 - 1 - 2]]
    assert [one.grade.reward for one in weighed.rollouts] == weighed.rewards[0].tolist()


def test_lambda_follows_the_running_mean_of_the_excess_cost():
    search = lagrange_term(cost_limit=1.0, cost_ema=0.9, lambda_lr=0.1)
    told(search, [2.0, 4.0], 0)  # excess 2
    told(search, [0.0, 0.0], 1)  # excess 0, not -1
    expected = 2 * math.exp(0.1 * 2)
    assert search._multiplier.at(1).value == pytest.approx(expected, rel=1e-12)
    expected *= math.exp(0.1 * 0.9 * 2)
    assert next_lambda(search, 2) == pytest.approx(expected, rel=1e-12)


def test_lambda_stays_within_its_bounds():
    search = lagrange_term(lambda_max=2.5, lambda_lr=10.0)
    told(search, [9.0, 9.0], 0)
    assert next_lambda(search, 1) == 2.5


def test_lambda_stays_where_the_cost_of_the_center_is_missing():
    search = lagrange_term()
    assert told(lagrange_term(), [math.nan, 3.0])["center_cost"] == 3.0
    values = told(search, [math.nan, math.nan], 0)
    assert "center_cost" not in values
    update = Update(0, 0, 0.1, 0.1, (), strategy_state=values)
    assert search.metrics(update)["center_cost"] is None
    assert next_lambda(search, 1) == 2.0


def test_a_missing_reward_or_cost_is_a_missing_reward():
    weighed, _ = lagrange_term(safe_first=0.0).weigh(
        0, BATCH, evaluation([(math.nan, 1), (1, math.nan)], [(1, 1)] * 2), None
    )
    assert np.isnan(weighed.rewards[0]).all()
    assert not np.isnan(weighed.rewards[1]).any()


def test_an_unsafe_completion_earns_the_lowest_reward_on_its_prompt():
    search = lagrange_term(safe_first=0.5)
    members = evaluation([(9, 0.6), (1, 0.5)], [(-3, 0.0), (7, 0.0)], [(2, 0.5), (4, 0.6)])
    weighed, _ = search.weigh(0, BATCH, members, None)
    without_cost = weighed.rewards + 2 * np.array([[0.6, 0.5], [0, 0], [0.5, 0.6]]) + 1
    assert without_cost == pytest.approx(np.array([[-3, 1], [-3, 7], [2, 1]]))


# --- runs


def test_lambda_reward_and_cost_are_recorded_and_drawn(tmp_path):
    path = toy_run(tmp_path / "run", "record.rollouts=999", "held_out.every=2")
    lambdas, costs = state(path, "lambda"), state(path, "center_cost")
    assert lambdas[0] == 1.0
    assert lambdas == sorted(lambdas)
    assert lambdas[-1] > 1.0
    directory = RunDirectory.open(path)
    rows = directory.generations()
    assert [row["lambda"] for row in rows] == lambdas
    assert [row["center_cost"] for row in rows] == costs
    rollouts = [json.loads(line) for line in (path / "rollouts.jsonl").read_text().splitlines()]
    for row in rows:
        parts = [one["parts"] for one in rollouts if one["generation"] == row["generation"]]
        means = {name: np.mean([one[name] for one in parts]) for name in ("reward", "cost")}
        assert row["parts"] == pytest.approx(means)
    for score in (one.score for one in directory.held_out()):
        assert score.reward == pytest.approx(-score.parts["reward"] - score.parts["cost"])
    assert "Mean cost of the center" in (path / "report.html").read_text()


@pytest.mark.parametrize(("gate", "weights"), [({"safe_first": 0.0}, 1.0), ({}, None)])
def test_a_fixed_lambda_evaluates_no_center(tmp_path, gate, weights):
    path = toy_run(tmp_path / "run", "generations=2", lambda_lr=0, **gate)
    assert state(path, "lambda") == [weights] * 2
    assert state(path, "center_cost") == [None, None]


def test_costs_that_are_none_or_nan_are_missing_and_never_0():
    costs = [None, math.nan, 1.5]

    def reply(_path, body):
        count = len(body["prompts"])
        return 200, {"rewards": [1.0] * count, "costs": costs[:count]}

    with listening(reply) as server:
        scorer = {"kind": "germline", "url": server.url}
        scorers = {"reward": scorer, "cost": scorer | {"output": "cost", "weight": -1}}
        with build_run_parts(settings(scorers=scorers)) as parts:
            found = parts.graders.submit(["a", "b", "c"], parts.batch(0)[:3]).result(HANG_S)
    assert [math.isnan(grade.reward) for grade in found] == [True, True, False]
    assert found[2].reward == 1.0 - 1.5
    assert (found[0].failure or "").startswith("cost: the response has None")
