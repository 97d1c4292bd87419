"""What every strategy must do, whichever it is: parametrised over the table of strategies."""

import pickle

import numpy as np
import pytest

from germline import noise
from germline.config import KINDS, ZScore, load_config
from germline.protocols import Strategy
from germline.shaping import utilities
from germline.strategies import STRATEGIES, make_strategy
from tests.evaluations import of_fitness

DIMENSIONS = 10
GENERATIONS = 60
TARGET = noise.normal(7, 0, 0, "target", DIMENSIONS).astype(np.float64)


@pytest.fixture(params=sorted(STRATEGIES))
def kind(request):
    return request.param


def make(kind, run_seed=0, sigma=0.1):
    section = {"kind": kind, "population": 16, "sigma": sigma, "learning_rate": 0.3}
    config = load_config({"strategy": section}).strategy
    return make_strategy(config, run_seed=run_seed, generations=GENERATIONS)


def draw(run_seed, generation, direction):
    """Redraw noise from its name, as every engine does."""
    return noise.normal(run_seed, generation, direction, "x", DIMENSIONS).astype(np.float64)


def perturbed(theta, member):
    drawn = draw(member.run_seed, member.generation, member.direction)
    return theta + member.sign * member.sigma * drawn


def step(strategy, generation, theta):
    population = strategy.ask(generation)
    played = [perturbed(theta, one) for one in population.members]
    fitness = np.array([-float(((one - TARGET) ** 2).sum()) for one in played])
    shaped = utilities(ZScore(), of_fitness(fitness), antithetic=population.antithetic)
    update = strategy.tell(population, shaped, fitness)
    moved = theta
    for direction, coefficient in enumerate(update.coefficients):
        drawn = draw(update.run_seed, update.generation, direction)
        moved = moved + update.learning_rate * coefficient * drawn
    return moved, update


def test_every_strategy_of_the_table_has_settings_and_keeps_the_contract(kind):
    assert set(STRATEGIES) == set(KINDS["strategy"])
    assert isinstance(make(kind), Strategy)


def test_it_climbs_a_sphere(kind):
    strategy, theta = make(kind), np.zeros(DIMENSIONS)
    for generation in range(GENERATIONS):
        theta, _ = step(strategy, generation, theta)
    assert ((theta - TARGET) ** 2).sum() < 0.05 * (TARGET**2).sum()


def test_asking_depends_on_run_seed_and_generation_only(kind):
    asked_before = make(kind)
    for generation in (3, 0, 5):
        asked_before.ask(generation)
    asked_before.tell(asked_before.ask(1), np.ones(16))
    assert asked_before.ask(4) == make(kind).ask(4)
    assert make(kind, run_seed=1).ask(4) != make(kind).ask(4)
    assert make(kind).ask(3) != make(kind).ask(4)


def pickled(strategy, kind, sigma, updates):
    return pickle.loads(pickle.dumps(strategy))


def recalled(strategy, kind, sigma, updates):
    fresh = make(kind, sigma=sigma)
    fresh.recall(updates)
    return fresh


@pytest.mark.parametrize("sigma", [0.1, {"kind": "plateau", "start": 0.5, "patience": 1}])
@pytest.mark.parametrize("stopped", [0, 1, 5])
@pytest.mark.parametrize("taken_up", [pickled, recalled])
def test_stopping_and_continuing_equals_never_stopping(kind, taken_up, stopped, sigma):
    strategy, theta, updates = make(kind, sigma=sigma), np.zeros(DIMENSIONS), []
    for generation in range(stopped):
        theta, update = step(strategy, generation, theta)
        updates.append(update)
    continued, other = taken_up(strategy, kind, sigma, updates), theta
    for generation in range(stopped, stopped + 5):
        theta, told = step(strategy, generation, theta)
        other, told_again = step(continued, generation, other)
        assert told == told_again
    assert theta.tobytes() == other.tobytes()


def test_a_population_has_the_members_asked_for_and_travels(kind):
    population = make(kind).ask(2)
    assert len(population) == 16
    assert population.generation == 2
    assert pickle.loads(pickle.dumps(population)) == population


def test_members_of_a_population_differ(kind):
    population = make(kind).ask(0)
    assert len({(one.direction, one.sign) for one in population.members}) == len(population)


def test_without_signal_theta_stays(kind):
    strategy = make(kind)
    update = strategy.tell(strategy.ask(0), np.zeros(16))
    assert not any(update.coefficients)
