"""The strategy nes: its populations, and its update against the equation written out in numpy."""

import numpy as np
import pytest

from germline import noise
from germline.config import Nes, ZScore
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.strategies.nes import NaturalEvolution
from germline.types import GermlineError, Population, SeedPerturbation
from tests.evaluations import of_fitness

DIMENSIONS = 20
TARGET = noise.weight_noise(7, 0, 0, "target", DIMENSIONS).astype(np.float64)


def nes(run_seed: int = 0, generations: int = 100, **settings: object) -> NaturalEvolution:
    chosen = {"sigma": 0.005, "learning_rate": 0.01} | settings
    return NaturalEvolution(Nes.model_validate(chosen), run_seed, generations)


def reward(theta: np.ndarray) -> float:
    return -float(((theta - TARGET) ** 2).sum())


def draw(run_seed: int, generation: int, direction: int) -> np.ndarray:
    return noise.weight_noise(run_seed, generation, direction, "x", DIMENSIONS).astype(np.float64)


def perturbed(theta: np.ndarray, member: SeedPerturbation) -> np.ndarray:
    drawn = draw(member.run_seed, member.generation, member.direction)
    return theta + member.sign * member.sigma * drawn


def reference(generation: int, theta: np.ndarray, *, antithetic: bool) -> np.ndarray:
    """One step of equations (1) and (2) as the paper writes them: N 12, sigma 0.1, alpha 0.2."""
    count, sigma, alpha = 12, 0.1, 0.2
    noises, fitness = [], []
    for i in range(count):
        direction, sign = (i // 2, (-1) ** i) if antithetic else (i, 1)
        epsilon = sign * draw(3, generation, direction)
        noises.append(epsilon)
        fitness.append(reward(theta + sigma * epsilon))
    scores = (np.array(fitness) - np.mean(fitness)) / np.std(fitness)
    gradient = sum(u * e for u, e in zip(scores, noises, strict=True)) / (count * sigma)
    return theta + alpha * sigma * gradient


@pytest.mark.parametrize("antithetic", [True, False])
def test_every_step_is_that_of_the_equation_written_out(antithetic):
    strategy = nes(3, population=12, sigma=0.1, learning_rate=0.2, antithetic=antithetic)
    theta = expected = np.zeros(DIMENSIONS)
    for generation in range(20):
        population = strategy.ask(generation)
        fitness = np.array(
            [reward(perturbed(theta, one)) for one in population.seed_perturbations()]
        )
        shaped = utilities(ZScore(), of_fitness(fitness), antithetic=antithetic)
        update = strategy.tell(population, shaped)
        for direction, coefficient in enumerate(update.coefficients):
            drawn = draw(update.run_seed, update.generation, direction)
            theta = theta + update.learning_rate * coefficient * drawn
        expected = reference(generation, expected, antithetic=antithetic)
        np.testing.assert_allclose(theta, expected, rtol=1e-12, atol=1e-12)
    assert reward(theta) > reward(np.zeros(DIMENSIONS)) / 2


def test_antithetic_members_come_in_pairs_that_share_a_direction():
    population = nes(population=6).ask(4)
    assert population.antithetic
    assert [(one.direction, one.sign) for one in population.seed_perturbations()] == [
        (0, 1),
        (0, -1),
        (1, 1),
        (1, -1),
        (2, 1),
        (2, -1),
    ]


def test_without_pairs_every_member_has_a_direction_of_its_own():
    population = nes(population=5, antithetic=False).ask(0)
    assert [(one.direction, one.sign) for one in population.seed_perturbations()] == [
        (direction, 1) for direction in range(5)
    ]


def test_a_coefficient_is_half_the_difference_of_its_pair_over_the_number_of_pairs():
    strategy = nes(population=4)
    update = strategy.tell(strategy.ask(0), np.array([1.0, -0.5, 0.25, -0.75]))
    assert update.coefficients == (1.5 / 4, 1.0 / 4)


def test_equal_utilities_in_a_pair_cancel():
    strategy = nes(population=4)
    update = strategy.tell(strategy.ask(0), np.array([0.7, 0.7, -0.7, -0.7]))
    assert update.coefficients == (0.0, 0.0)


def test_a_member_without_utility_gets_no_share():
    strategy = nes(population=3, antithetic=False)
    update = strategy.tell(strategy.ask(0), np.array([1.0, 0.0, -1.0]))
    assert update.coefficients == (1 / 3, 0.0, -1 / 3)


def test_as_many_utilities_as_members_are_needed():
    strategy = nes(population=4)
    with pytest.raises(ValueError, match="shorter"):
        strategy.tell(strategy.ask(0), np.zeros(3))


def test_linear_settings_go_from_start_to_end_over_the_run():
    strategy = nes(
        generations=5,
        population=2,
        sigma={"start": 0.4, "end": 0.2},
        learning_rate={"start": 0.1, "end": 0.0},
    )
    populations = [strategy.ask(generation) for generation in range(5)]
    updates = [strategy.tell(one, np.array([1.0, -1.0])) for one in populations]
    np.testing.assert_allclose(
        [one.seed_perturbations()[0].sigma for one in populations], [0.4, 0.35, 0.3, 0.25, 0.2]
    )
    np.testing.assert_allclose([one.sigma for one in updates], [0.4, 0.35, 0.3, 0.25, 0.2])
    np.testing.assert_allclose([one.learning_rate for one in updates], [0.1, 0.075, 0.05, 0.025, 0])


def test_a_cosine_goes_from_start_to_end_over_the_run():
    cosine = {"kind": "cosine", "start": 0.4, "end": 0.2, "warmup": 1}
    strategy = nes(generations=4, population=2, sigma=cosine, learning_rate=cosine)
    updates = [strategy.tell(strategy.ask(one), np.array([1.0, -1.0])) for one in range(4)]
    assert [one.sigma for one in updates] == pytest.approx([0.2, 0.4, 0.3, 0.2])
    assert [one.learning_rate for one in updates] == [one.sigma for one in updates]


FALLING = {"kind": "plateau", "start": 0.4, "factor": 0.5, "patience": 2}


def test_sigma_falls_on_a_plateau_and_the_step_does_not():
    strategy = nes(population=2, sigma=FALLING, learning_rate=0.1)
    updates = [
        strategy.tell(strategy.ask(generation), np.array([1.0, -1.0]), np.array([one, one + 1.0]))
        for generation, one in enumerate([3.0, 1.0, 2.0, 1.0, 4.0])
    ]
    assert [one.sigma for one in updates] == [0.4, 0.4, 0.4, 0.2, 0.2]
    assert {one.learning_rate for one in updates} == {0.1}
    assert {one.coefficients for one in updates} == {(1.0,)}
    assert strategy.ask(5).seed_perturbations()[0].sigma == 0.2


def test_the_state_has_the_mean_fitness_of_members_that_have_one_where_sigma_needs_it():
    utility, fitness = np.zeros(4), np.array([1.0, np.nan, 2.0, np.nan])
    adaptive, constant = nes(population=4, sigma=FALLING), nes(population=4)
    missing = np.full(4, np.nan)
    assert adaptive.tell(adaptive.ask(0), utility, fitness).strategy_state.read() == {
        "fitness": 1.5
    }
    assert adaptive.tell(adaptive.ask(1), utility, missing).strategy_state.read() == {}
    assert constant.tell(constant.ask(0), utility, fitness).strategy_state.read() == {}


def test_a_plateau_cannot_be_seen_without_fitness():
    strategy = nes(population=2, sigma=FALLING)
    with pytest.raises(
        GermlineError, match=r"kind=plateau needs the fitness .*utilities, fitness\)"
    ):
        strategy.tell(strategy.ask(0), np.zeros(2))


def directions(population: Population) -> list[tuple[int, int, int]]:
    return [
        (one.run_seed, one.generation, one.direction) for one in population.seed_perturbations()
    ]


def test_mistake_5_no_perturbation_of_a_long_run_is_drawn_twice():
    """Members have an index, not a random seed that a dict of results could confuse.

    30 seeds out of 0..1e6 per generation, kept in a dict, collide within a generation with
    probability 30 * 29 / 2 / 1e6, in 1000 generations with 1 - (1 - 4.35e-4)^1000 = 35 %; two
    members then share one result. Here 1000 generations x 30 members name 30,000 directions.
    """
    collision_chance = 1 - (1 - 30 * 29 / 2 / 1e6) ** 1000
    assert collision_chance == pytest.approx(0.35, abs=0.01)
    strategy = nes(generations=1000, population=30, antithetic=False)
    names = [name for generation in range(1000) for name in directions(strategy.ask(generation))]
    assert len(set(names)) == len(names) == 30_000


def test_mistake_5_utilities_go_to_members_by_place_whatever_they_are():
    strategy = nes(population=30, antithetic=False)
    utility = np.arange(30.0)
    assert strategy.tell(strategy.ask(0), utility).coefficients == tuple(utility / 30)


def first_noise(run_seed: int, generation: int = 0) -> bytes:
    member = nes(run_seed).ask(generation).seed_perturbations()[0]
    return noise.weight_noise(
        member.run_seed, member.generation, member.direction, "x", 64
    ).tobytes()


def test_mistake_6_seed_0_is_seed_0():
    assert {one.run_seed for one in nes(0).ask(0).seed_perturbations()} == {0}
    assert nes(0).tell(nes(0).ask(0), np.zeros(32)).run_seed == 0
    assert first_noise(0) != first_noise(42)


def test_mistake_6_neighboring_run_seeds_share_no_population():
    """`default_rng(seed + generation)` gives generation 1 of run 0 to generation 0 of run 1."""
    drawn = {first_noise(seed, generation) for seed in range(5) for generation in range(10)}
    assert len(drawn) == 50


def test_the_strategy_is_found_by_its_name():
    assert isinstance(make_strategy(Nes(), run_seed=0, generations=1), NaturalEvolution)
