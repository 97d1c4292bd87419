"""The default search: sigma calibrated by behavior, a learning rate that follows the signal."""

import math
from dataclasses import asdict

import numpy as np
import pytest

import germline
from germline.config import AutoLearningRate, Nes, ZScore
from germline.fleet.worker_jobs import LogProbabilitiesQuery
from germline.generation_loop import generations
from germline.record import RunDirectory
from germline.run.build_parts import build_run_parts
from germline.shaping import utilities
from germline.signal_metrics import signal_power
from germline.strategies.adaptive_values import SignalLearningRate
from germline.strategies.nes import NaturalEvolution
from germline.types import Evaluation, Population, SeedPerturbation, SignalPower, Update
from tests import toy_runs
from tests.wrappers import FleetWrapper

pytestmark = pytest.mark.usefixtures("graded_in_process")

CLEAR, CHANCE = SignalPower(1.0, 0.0), SignalPower(1.0, 1.0)
AUTO = ("strategy={kind: nes, population: 6}",)


def entries(path):
    return RunDirectory.open(path).journal.read()


def shape(evaluation, *, antithetic, baseline=None):
    return utilities(ZScore(), evaluation, antithetic=antithetic, baseline=baseline)


def pairs(count):
    members = tuple(SeedPerturbation(0, 0, k, sign, 0.1) for k in range(count) for sign in (1, -1))
    return Population(0, members, antithetic=True)


def update(generation, *coefficients, sigma=0.1, power=None):
    state = {"power": asdict(power)} if power else {}
    return Update(0, generation, sigma, 0.1, coefficients, strategy_state=state)


def power_of(rewards):
    return signal_power(pairs(len(rewards) // 2), Evaluation(rewards, (), 0, 0.0), shape)


def test_the_noise_of_a_mean_is_its_variance_over_examples():
    # Without a spread between fitnesses to divide by, the jackknife is the textbook formula.
    chance = np.random.default_rng(0)
    rewards = chance.normal(size=(64, 20))

    def raw(evaluation, *, antithetic, baseline=None):
        return evaluation.rewards.mean(axis=1)

    found = signal_power(pairs(32), Evaluation(rewards, (), 0, 0.0), raw)
    assert found is not None
    apart = (rewards[0::2] - rewards[1::2]) / 64
    assert found.total == pytest.approx(np.mean(apart.mean(axis=1) ** 2))
    assert found.noise == pytest.approx(np.mean(apart.var(axis=1, ddof=1) / 20))


def test_the_share_does_not_depend_on_the_scale_of_the_rewards():
    rewards = np.random.default_rng(2).normal(size=(16, 6))
    assert power_of(rewards * 1000).share == pytest.approx(power_of(rewards).share)
    rewards[3, 2] = np.nan  # it is left out
    assert math.isfinite(power_of(rewards).share)
    assert power_of(np.ones((4, 1))) is None  # one example shows no noise


@pytest.mark.parametrize("seed", [0, 1])
def test_the_excess_is_that_of_a_fixed_factor_over_its_noise(seed):
    """Rewards of 64 pairs on 40 examples: each has noise of 1, and a signal that all share."""
    noise = np.random.default_rng(seed).normal(size=(128, 40))
    signal = np.random.default_rng(seed + 9).normal(size=(128, 1))
    assert power_of(noise).excess == pytest.approx(0, abs=0.5)
    expected = 40 * np.mean((signal[0::2] - signal[1::2]) ** 2) / 2
    assert power_of(noise + signal).excess == pytest.approx(expected, rel=0.2)
    assert power_of(signal + 0 * noise).excess == pytest.approx(100, rel=0.03)


@pytest.mark.parametrize(("directions", "examples"), [(8, 2), (16, 2), (8, 4), (16, 8)])
def test_the_excess_of_noise_has_the_mean_and_the_variance_of_its_equation(directions, examples):
    random = np.random.default_rng(0)
    found = [power_of(random.normal(size=(2 * directions, examples))).excess for _ in range(300)]
    assert np.mean(found) == pytest.approx(0, abs=0.1)
    assert np.mean(np.array(found) > 2 * math.sqrt(2 / directions)) < 0.09
    assert power_of(random.normal(size=(4, 2))).excess is None  # F of 2 and 2 has no mean
    many = [power_of(random.normal(size=(128, examples))).excess for _ in range(200)]
    assert np.std(many) == pytest.approx(math.sqrt(2 / 64), rel=0.12)


def test_members_that_differ_on_one_example_have_no_excess():
    rewards = np.zeros((8, 5))
    rewards[:, 2] = [1, 0, 1, 0, 0, 1, 0, 0]
    assert -0.2 < power_of(rewards).excess < 0
    assert power_of(np.ones((8, 5))).excess == 0
    rewards[0] = np.nan
    assert -0.2 < power_of(rewards).excess < 0
    alone = Population(0, tuple(SeedPerturbation(0, 0, k, 1, 0.1) for k in range(6)), False)
    equal = signal_power(alone, Evaluation(np.full((6, 5), 0.1), (), 0, 0.0), shape)
    assert equal is not None
    assert equal.excess == 0  # the mean of six times 0.1 is not 0.1


def test_the_excess_of_huge_and_tiny_rewards_is_that_of_others():
    rewards = np.random.default_rng(0).choice([-1.0, 0.5, 1.0], size=(8, 5))
    for scale in (1e300, 1e-163):
        assert power_of(scale * rewards).excess == pytest.approx(power_of(rewards).excess)


def steps(powers, directions=16, **settings):
    """Return the length of every step in sigmas."""
    measured, found = SignalLearningRate(AutoLearningRate(**settings)), []
    coefficients = [1.0] * directions
    for generation, power in enumerate(powers):
        rate = measured.of(generation, 0.1, coefficients, power)
        found.append(rate * math.sqrt(directions) / 0.1)
        measured.tell(0.1, power)
    return found


@pytest.mark.parametrize(
    ("powers", "settings", "expected"),
    [
        ([CLEAR], {"directions": 4, "step": 0.1, "least_step": 0}, [0.1 * math.sqrt(4)]),
        ([CLEAR], {"directions": 10_000, "max_step": 0.3}, [0.3]),
        # Where chance explains everything, only the least step is left.
        ([CHANCE] * 4, {"least_step": 0.2}, [0.2 / math.sqrt(t + 1) for t in range(4)]),
        # The signal is averaged over recent generations.
        (
            [CLEAR, CHANCE],
            {"step": 0.1, "memory": 0.5, "max_step": 9, "least_step": 0},
            [0.1 * 4, 0.1 * 0.5 / 1.5 * 4],
        ),
    ],
)
def test_steps_are_those_of_the_equations(powers, settings, expected):
    assert steps(powers, **settings) == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_rewards_of_another_scale_begin_the_average_anew(factor):
    loud = SignalPower(factor, factor)
    found = steps([CLEAR] * 30 + [loud], least_step=0)
    assert found[-1] == 0


def test_a_larger_sigma_begins_the_average_anew():
    measured = SignalLearningRate(AutoLearningRate(least_step=0))
    measured.tell(0.1, CLEAR)
    for generation in (1, 2):  # the first one is followed by one in which no members differ
        same, larger = (measured.of(generation, sigma, [1.0], CHANCE) for sigma in (0.1, 0.3))
        assert same > 0
        assert larger == 0
        measured.tell(0.3, None)


def test_steps_are_longer_where_members_differ_by_noise_alone_at_a_larger_sigma_too():
    def told(strategy, generation, excess, fitness):
        population, power = strategy.ask(generation), SignalPower(1.0, 1.0, excess)
        return strategy.tell(population, fitness, fitness, None, power)

    strategy, stopped, tied = (NaturalEvolution(Nes(population=128), 0, 10) for _ in range(3))
    strategy.calibrate(0, lambda _members: 0.002)
    fitness, excesses = np.arange(128.0), (0.0, 0.0, 9.0, 0.0, 0.0)
    updates = [told(strategy, t, excess, fitness) for t, excess in enumerate(excesses)]
    steps = [one.learning_rate * np.linalg.norm(one.coefficients) / one.sigma for one in updates]
    expected = [0.25 * f / math.sqrt(t + 1) for t, f in enumerate((1, 1, 3, 3, 3))]
    assert steps == pytest.approx(expected)
    stopped.recall(updates)
    assert told(stopped, 5, 0.0, fitness) == told(strategy, 5, 0.0, fitness)

    tied.calibrate(0, lambda _members: 0.002)
    first, _ = (told(tied, t, 0.0, 0 * fitness) for t in range(2))
    assert (tied.sigma.at(2) > 7 * first.sigma, tied.sigma.lengthening) == (True, 1)


def test_an_update_is_as_long_as_measured_whatever_the_shaping():
    strategy = NaturalEvolution(Nes(population=8, sigma=0.1), 0, 10)
    population = strategy.ask(0)
    lengths = []
    for scale in (1.0, 50.0):
        fresh = NaturalEvolution(Nes(population=8, sigma=0.1), 0, 10)
        told = fresh.tell(population, scale * np.arange(8.0), np.arange(8.0), None, CLEAR)
        lengths.append(told.learning_rate * np.linalg.norm(told.coefficients))
    assert lengths[0] == pytest.approx(lengths[1])


@pytest.mark.parametrize("space", ["full", "low_rank", "lora", "subspace"])
def test_every_space_is_calibrated(tmp_path, space):
    small = ("strategy.population=2", "generations=1")
    path = toy_runs.run(tmp_path / "run", *AUTO, f"space={space}", *small)
    assert entries(path)[0].update.sigma > 0


class Watched(FleetWrapper):
    """A fleet that notes the prompts that it is asked about."""

    def __init__(self, inner):
        super().__init__(inner)
        self.prompts = []

    def evaluate_center(self, examples, decoding, samples=1, graders=None):
        self.prompts.append([one.prompt for one in examples])
        return self.inner.evaluate_center(examples, decoding, samples, graders)

    def query(self, query):
        if isinstance(query, LogProbabilitiesQuery):
            self.prompts.append([one.prompt for one in query.examples])
        return self.inner.query(query)


def test_members_read_the_prompts_that_the_center_answered():
    config = toy_runs.settings(*AUTO, "prompt_search.template=['Say: {prompt}', '{prompt}']")
    with build_run_parts(config) as parts:
        fleet = Watched(parts.fleet)
        next(generations(parts.method, fleet, parts.batch, parts.decoding, range(1)))
    answered, read, *_others = fleet.prompts
    assert {*read} <= {*answered}
    assert all(prompt.startswith("Say: ") for prompt in answered)


def test_a_run_in_measured_units_can_be_forked_and_its_fork_too(tmp_path):
    parent = toy_runs.run(tmp_path / "parent", *AUTO, "space=lora")
    child = toy_runs.finish(germline.fork(parent, 2, ["batch_size=3"], tmp_path / "child"))
    grandchild = germline.fork(child, 1, ["strategy.sigma=0.1"], tmp_path / "grandchild")
    toy_runs.finish(grandchild)
    assert germline.replay(child, generation=1) == entries(child)[1].digest
    assert germline.replay(grandchild.directory.path, generation=-1)
    assert RunDirectory.open(child).base_digest == entries(parent)[2].digest
