"""Diagnosis: every number against a case worked out by hand."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import germline
from germline import signal_metrics
from germline.config import Adam, Raw, Sgd, ZScore
from germline.record import RunDirectory
from germline.record.journal import inherited_walk
from germline.run.build_parts import make_engine
from germline.run.weights import load_engine
from germline.shaping import fitness, utilities
from germline.signal_metrics import SignalMetrics, walked
from germline.types import (
    Completion,
    Evaluation,
    Grade,
    MeanUpdate,
    Population,
    Rollout,
    SeedPerturbation,
    Update,
    VectorPerturbation,
)
from tests.evaluations import of_rewards
from tests.toy_runs import finish, run

NAN = math.nan


def pairs(count):
    members = tuple(SeedPerturbation(0, 0, k, sign, 0.1) for k in range(count) for sign in (1, -1))
    return Population(0, members, antithetic=True)


def alone(count):
    return Population(
        0, tuple(SeedPerturbation(0, 0, k, 1, 0.1) for k in range(count)), antithetic=False
    )


def shape(evaluation, *, antithetic, baseline=None):
    return utilities(ZScore(), evaluation, antithetic=antithetic)


def update(*coefficients):
    return Update(0, 0, 0.1, 0.1, coefficients)


def rewards(*rows):
    return np.array(rows, dtype=np.float64)


# --- shares


def test_examples_and_pairs_are_informative_where_members_differ_on_them():
    table = rewards([1, 0, 0.5, 0], [1, 1, 0.5, 0], [1, 0, 0.5, 1])
    assert signal_metrics.informative_examples(table) == 0.5
    missing = rewards([1, NAN, NAN], [NAN, NAN, 0], [0, NAN, 0])
    assert signal_metrics.informative_examples(missing) == pytest.approx(1 / 3)
    assert signal_metrics.informative_pairs(rewards(1, 0, 0.5, 0.5, NAN, 1, 2, 2)) == 0.25


@pytest.mark.parametrize("value", [1.0, 1e-3, -2000.0])
def test_mistake_12_near_ties_are_no_information(value):
    near = value * (1 + 2.0**-24)
    assert signal_metrics.informative_examples(rewards([value], [near])) == 0
    assert signal_metrics.informative_pairs(rewards(value, near)) == 0


@pytest.mark.parametrize(
    ("texts", "share"), [(["", " \n", "8", "a"], 0.5), (["8"], 0.0), (["", ""], 1.0), ([], 0.0)]
)
def test_completions_without_any_text_are_counted(texts, share):
    rollouts = tuple(
        Rollout(0, j, Completion(text, (7,), "eos", 3), Grade(0.0, {}))
        for j, text in enumerate(texts)
    )
    assert signal_metrics.empty_share(Evaluation(np.zeros((1, 1)), rollouts, 0, 0.0)) == share


# --- halves


def test_utilities_fold_into_the_weights_of_directions():
    weights = signal_metrics.direction_weights(pairs(2), np.array([1.0, -1.0, 0.5, 0.5]))
    np.testing.assert_array_equal(weights, [0.5, 0.0])


@pytest.mark.parametrize(
    ("population", "table", "agreement"),
    [
        (pairs(2), rewards([3, 3], [1, 1], [0, 0], [0, 0]), 1),
        (pairs(2), rewards([1, 0], [0, 1], [0, 0], [0, 0]), -1),
        (alone(2), rewards([1, 1], [0, 1]), 0),
        (alone(3), rewards([1], [2], [3]), None),
        (alone(2), rewards([1, 1], [1, 1]), None),
    ],
    ids=["the same", "the opposite", "a half without signal", "one example", "silence"],
)
def test_halves_agree_as_far_as_they_say_the_same(population, table, agreement):
    found = signal_metrics.half_agreement(population, of_rewards(table), shape)
    assert found == (None if agreement is None else pytest.approx(agreement))


def test_the_agreement_is_the_cosine_of_the_two_updates():
    table = rewards([2, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0] * 4)
    population = pairs(3)
    # Fitness (2, 0, 0, 0, 0, 0) and (0, 0, 1, 0, 0, 0): one direction each, at right angles.
    assert signal_metrics.half_agreement(population, of_rewards(table), shape) == pytest.approx(0)
    table[2, 0::2] = 2  # the first half now favors both alike, the second one of them
    found = signal_metrics.half_agreement(population, of_rewards(table), shape)
    assert found == pytest.approx(1 / math.sqrt(2))


def test_the_noise_of_members_on_a_share_of_the_examples_is_averaged_by_the_update():
    table = rewards([3, 0, 1, 2], [0, 1, 2, 0], [1, 1, 0, 3], [0, 2, 1, 1])
    population = alone(4)
    given = of_rewards(table), fitness(table), update(1.0, 0.0, 0.0, 0.0), shape
    whole = SignalMetrics().of(population, *given)
    part = SignalMetrics().of(population, *given, share=0.25)
    rho = whole.agreement
    assert rho is not None
    assert rho < 0
    assert part.agreement == pytest.approx(rho / (-rho + (1 + rho) / 4))
    power, of_share = (
        signal_metrics.signal_power(population, of_rewards(table), shape, share)
        for share in (1.0, 0.25)
    )
    assert power is not None
    assert of_share is not None
    assert of_share.total - of_share.noise == pytest.approx(power.total - power.noise)
    signal = max(0.0, power.total - power.noise)
    assert of_share.total == pytest.approx(signal + power.noise / 4)


def test_halves_are_compared_with_the_running_baseline_where_the_population_is():
    population = replace(alone(1), baseline=0.5)
    raw = partial(utilities, Raw())
    for table, agreement in (([[1, 0]], -1), ([[1, 2]], 1)):
        assert signal_metrics.half_agreement(population, of_rewards(rewards(*table)), raw) == (
            pytest.approx(agreement)
        )


def test_members_given_by_coordinates_have_no_directions():
    members = tuple(VectorPerturbation(0, i, np.zeros(3, np.float32)) for i in range(2))
    table = rewards([1, 0], [0, 0])
    population = Population(0, members, antithetic=False)
    move = MeanUpdate(0, 0.1, (1.0, -1.0))
    found = SignalMetrics().of(population, of_rewards(table), fitness(table), move, shape)
    assert (found.agreement, found.directions) == (None, None)
    assert (found.informative_examples, found.zero) == (0.5, False)


# --- directions


@pytest.mark.parametrize(
    ("coefficients", "directions"),
    [
        ((0.25, -0.25, 0.25, 0.25), 4.0),
        ((0.0, 7.0, 0.0), 1.0),
        ((2.0, 1.0), 25 / 17),
        ((2e-200, 1e-200), 25 / 17),
        ((0.0, 0.0), None),
    ],
)
def test_directions_count_as_far_as_they_are_used(coefficients, directions):
    found = signal_metrics.effective_directions(coefficients)
    assert found == (None if directions is None else pytest.approx(directions))


# --- whole generations


def test_generations_without_a_signal_are_counted_in_a_row():
    nothing, something = rewards([1, 1], [1, 1]), rewards([1, 0], [0, 0])
    counting = SignalMetrics()
    found = []
    for table in (nothing, something, nothing, nothing):
        shaped = shape(of_rewards(table), antithetic=False)
        told = update(*(shaped / 2))
        found.append(counting.of(alone(2), of_rewards(table), fitness(table), told, shape))
    assert [one.zero for one in found] == [True, False, True, True]
    assert [one.zeros_in_a_row for one in found] == [1, 0, 1, 2]


def test_pairs_whose_halves_tie_teach_nothing_though_pairs_differ():
    table = rewards([1], [1], [0], [0])
    shaped = shape(of_rewards(table), antithetic=True)
    assert shaped.any()
    weights = signal_metrics.direction_weights(pairs(2), shaped)
    found = SignalMetrics().of(pairs(2), of_rewards(table), fitness(table), update(*weights), shape)
    assert (found.zero, found.informative_examples, found.informative_pairs) == (True, 1.0, 0.0)


pytestmark = pytest.mark.usefixtures("graded_in_process")


def an_update(generation, coefficients, rate=0.5, **more):
    return Update(0, generation, 0.1, rate, tuple(coefficients), **more)


FIRST = an_update(0, [3.0, 4.0])
MOMENTUM, ADAM = Sgd(momentum=0.75), Adam()
ADAM_WALK = [0.1 * math.sqrt(steps) for steps in range(1, 5)]


@pytest.mark.parametrize(
    ("updates", "optimizer", "expected"),
    [
        ([FIRST, an_update(1, [0.0, 12.0]), an_update(2, [0.0, 0.0])], Sgd(), [2.5, 6.5, 6.5]),
        ([an_update(0, [1.0]), an_update(1, [1.0], skipped=True)], MOMENTUM, [2.0, 2.0]),
        ([an_update(g, [1e-3, -1e-3], rate=0.1) for g in range(4)], ADAM, ADAM_WALK),
        ([an_update(0, [1.0]), MeanUpdate(1, 0.1, (0.5, -0.5))], Sgd(), [0.5, None]),
        ([an_update(0, [1.0], backpropagated=True)], Sgd(), [None]),
    ],
    ids=["new", "skipped, momentum", "adam", "no directions", "no sum"],
)
def test_steps_along_new_directions_add_up_as_squares(updates, optimizer, expected):
    assert walked(updates, optimizer) == pytest.approx(expected)


def test_a_walk_goes_on_from_where_it_was():
    assert walked([an_update(0, [8.0])], start=3.0) == [5.0]


@pytest.mark.parametrize(
    "variant",
    [
        ("space=low_rank", "shaping=centered_ranks"),
        ("strategy.optimizer=adam", "strategy.learning_rate=0.01"),
    ],
    ids=["low_rank", "adam"],
)
def test_weights_without_a_signal_are_as_far_from_the_start_as_the_walk(variant, tmp_path):
    noise = ("generations=20", "space=full", "strategy.population=4", "held_out.examples=1")
    path = run(tmp_path / "run", *noise, *variant)
    directory = RunDirectory.open(path)
    start = make_engine(directory.config).weights.state()
    end = load_engine(directory).weights.state()
    moved = torch.cat([(end[name] - one).flatten() for name, one in start.items()])
    updates = [entry.update for entry in directory.journal.read()]
    walk = walked(updates, directory.config.optimizer)[-1]
    searched = moved[moved != 0]
    assert float(searched.square().mean().sqrt()) == pytest.approx(walk, rel=0.25)


def test_a_fork_goes_on_from_the_walk_of_its_ancestors(tmp_path):
    parent = run(tmp_path / "run", "generations=2")
    child = finish(germline.fork(parent, 1, ["generations=1"], tmp_path / "child"))
    directory = RunDirectory.open(child)
    shown = [row["signals"]["walk"] for row in RunDirectory.open(parent).generations()]
    assert shown == walked([one.update for one in RunDirectory.open(parent).journal.read()])
    before = shown[-1]
    assert inherited_walk(directory.ancestors, "constant") == before
    assert directory.generations()[0]["signals"]["walk"] > before
    assert inherited_walk(directory.ancestors, "std") == 0
