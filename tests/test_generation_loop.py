"""The loop: what it runs, what it depends on, and what it does when rewards are missing."""

import math
from dataclasses import replace

import numpy as np
import pytest

from germline.fleet import LocalFleet
from germline.generation_loop import batches, generations
from germline.record import RunDirectory
from germline.run import Training, build_run_parts, resume
from germline.types import Example, GermlineError, Grade
from tests.toy_runs import GradedHere, finish, journal, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")


class LocalVariant(LocalFleet):
    """A fleet that differs from the local one in how it evaluates a population."""

    def __init__(self, parts):
        super().__init__(parts.fleet.engine, GradedHere(parts.task), parts.config.microbatch)
        self.calls = []

    def evaluate(self, population, batch, decoding):
        self.calls.append((population, batch, decoding))
        return super().evaluate(population, batch, decoding)


class Losing(LocalVariant):
    """Loses rewards: `lost[attempt]` says which (members, examples) of that call."""

    def __init__(self, parts, lost):
        super().__init__(parts)
        self.lost = lost

    def evaluate(self, population, batch, decoding):
        evaluation = super().evaluate(population, batch, decoding)
        where = self.lost.get(len(self.calls) - 1)
        if where is None:
            return evaluation
        rewards = evaluation.rewards.copy()
        rewards[where] = math.nan
        gone = Grade(math.nan, {}, "engine 3: lost")
        rollouts = [
            replace(one, grade=gone) if math.isnan(reward) else one
            for one, reward in zip(evaluation.rollouts, rewards.ravel(), strict=True)
        ]
        return replace(evaluation, rewards=rewards, rollouts=tuple(rollouts))


EVERYTHING = (slice(None), slice(None))


def loop(fleet_of=LocalVariant, config=None, span=None):
    """Run the bare loop and return its records and its fleet."""
    config = config or settings()
    with build_run_parts(config) as parts:
        fleet = fleet_of(parts)
        span = span or range(config.generations)
        records = list(generations(parts.method, fleet, parts.batch, parts.decoding, span))
    return records, fleet


def test_starting_in_the_middle_depends_on_the_generation_alone():
    _, whole = loop()
    _, later = loop(span=range(2, 4))
    for (population, batch, decoding), expected in zip(later.calls, whole.calls[2:], strict=True):
        assert (population, batch, decoding) == expected


def test_mistake_7_no_generation_repeats_the_perturbations_of_another():
    _, fleet = loop(config=settings("generations=6"))
    names = [
        (one.run_seed, one.generation, one.direction, one.sign)
        for population, _, _ in fleet.calls
        for one in population.members
    ]
    assert len(set(names)) == len(names) == 36


def test_sampling_luck_changes_with_the_generation_and_with_nothing_else():
    _, fleet = loop()
    sampling_noises = [decoding for _, _, decoding in fleet.calls]
    assert [one.noise_generation for one in sampling_noises] == [0, 1, 2, 3]
    assert {replace(one, noise_generation=0) for one in sampling_noises} == {sampling_noises[0]}


def test_fitness_is_the_mean_reward_and_utilities_have_mean_zero():
    for record in loop()[0]:
        np.testing.assert_allclose(record.fitness, record.evaluation.rewards.mean(axis=1))
        assert abs(sum(record.utilities)) < 1e-9
        assert record.timing.keys() >= {"evaluate_s", "tell_s", "apply_s", "digest_s", "generate_s"}


def write(folder, fleet_of, config):
    """Train into a run directory with a fleet of the test's own."""
    parts = build_run_parts(config)
    directory = RunDirectory.create(folder, config, parts.fleet.digest(), 1)
    return finish(Training(replace(parts, fleet=fleet_of(parts)), directory))


# --- missing rewards


def test_a_generation_that_lost_too_much_is_played_once_more():
    records, fleet = loop(lambda parts: Losing(parts, {1: EVERYTHING}))
    assert [call[0].generation for call in fleet.calls] == [0, 1, 1, 2, 3]
    assert fleet.calls[1] == fleet.calls[2]
    assert [one.digest for one in records] == [one.digest for one in loop()[0]]


def test_up_to_half_of_the_rewards_may_be_missing():
    half = (slice(None), slice(0, 2))
    records, fleet = loop(lambda parts: Losing(parts, {0: half}))
    assert len(fleet.calls) == len(records) == 4
    np.testing.assert_allclose(records[0].fitness, records[0].evaluation.rewards[:, 2:].mean(1))


def test_a_member_without_rewards_gets_no_utility_and_neither_does_its_partner():
    records, _ = loop(lambda parts: Losing(parts, {0: (2, slice(None))}))
    assert math.isnan(records[0].fitness[2])
    assert records[0].utilities[2] == records[0].utilities[3] == 0
    assert records[0].update.coefficients[1] == 0
    assert any(records[0].update.coefficients)


def test_what_is_missing_twice_stops_the_run_with_cause_and_remedy():
    lost = {2: EVERYTHING, 3: (slice(None), slice(0, 3))}
    with pytest.raises(GermlineError, match=r"generation 2: 75% of the rewards .*engine 3: lost"):
        loop(lambda parts: Losing(parts, lost))


def test_the_run_that_stopped_for_missing_rewards_resumes_to_the_same_bits(tmp_path):
    lost = {3: EVERYTHING, 4: EVERYTHING}
    with pytest.raises(GermlineError, match="generation 3: 100% of the rewards are missing"):
        write(tmp_path / "a", lambda parts: Losing(parts, lost), settings())
    assert RunDirectory.open(tmp_path / "a").journal.last_generation() == 2
    finish(resume(tmp_path / "a"))
    assert journal(tmp_path / "a") == journal(run(tmp_path / "b"))


# --- batches

TEN = [Example(index, f"question {index}", "", True) for index in range(10)]


def numbers(generation, size, run_seed=0, examples=TEN):
    return [one.index for one in batches(examples, size, run_seed)(generation)]


@pytest.mark.parametrize("size", [3, 5, 9])
def test_an_epoch_visits_every_example_once(size):
    stream = [one for generation in range(30) for one in numbers(generation, size)]
    for epoch in range(len(stream) // 10):
        assert sorted(stream[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_every_epoch_and_every_run_seed_has_an_order_of_its_own():
    orders = [
        tuple(numbers(2 * epoch, 5, seed) + numbers(2 * epoch + 1, 5, seed))
        for seed in range(3)
        for epoch in range(4)
    ]
    assert len(set(orders)) == 12


@pytest.mark.parametrize("size", [10, 64])
def test_a_batch_as_large_as_the_task_plays_everything_in_order(size):
    assert numbers(5, size) == list(range(10))


# --- signals


def silenced(parts):
    """Let every member write the end of the sequence and nothing else."""
    tensors = parts.fleet.engine.weights.tensors
    tensors["layers.0.mix.bias"].fill_(1e3)  # tanh is 1 then, whatever the prompt
    tensors["layers.0.read.weight"][-1] = 1e3
    return LocalVariant(parts)


def test_mistake_11_a_generation_of_nothing_but_the_end_of_sequence_is_counted_as_it_happens():
    records, _ = loop(silenced, settings("generations=2"))
    for record in records:
        assert {one.completion.text for one in record.evaluation.rollouts} == {""}
        assert all(one.completion.tokens for one in record.evaluation.rollouts)
        assert record.signals.empty == 1
    assert loop(config=settings("generations=1"))[0][0].signals.empty < 1


def test_mistake_12_generations_without_a_difference_are_counted_as_they_happen():
    records, _ = loop(silenced, settings("generations=3"))
    assert [one.signals.zero for one in records] == [True] * 3
    assert [one.signals.zeros_in_a_row for one in records] == [1, 2, 3]
    assert {one.signals.informative_examples for one in records} == {0}
    assert not any(records[-1].update.coefficients)


def test_a_member_that_is_alone_does_not_differ_from_others():
    alone = "strategy={population: 1, antithetic: false, baseline: running, learning_rate: 0.001}"
    records, _ = loop(config=settings(alone, "shaping=raw", "generations=2"))
    assert [one.signals.informative_examples for one in records] == [None, None]
    assert [one.signals.zero for one in records] == [True, False]
