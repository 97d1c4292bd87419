"""The strategy nes: its populations and its coefficients; tests/maths has its equation."""

import numpy as np
import pytest

from germline import noise
from germline.config import Nes
from germline.strategies.nes import NaturalEvolution
from germline.types import Population


def nes(run_seed: int = 0, generations: int = 100, **settings: object) -> NaturalEvolution:
    chosen = {"sigma": 0.005, "learning_rate": 0.01} | settings
    return NaturalEvolution(Nes.model_validate(chosen), run_seed, generations)


@pytest.mark.parametrize(
    ("antithetic", "expected"),
    [
        (True, [(0, 1), (0, -1), (1, 1), (1, -1)]),
        (False, [(0, 1), (1, 1), (2, 1), (3, 1)]),
    ],
)
def test_members_come_in_pairs_of_a_direction_or_have_one_each(antithetic, expected):
    population = nes(population=4, antithetic=antithetic).ask(4)
    assert population.antithetic is antithetic
    assert [(one.direction, one.sign) for one in population.seed_perturbations()] == expected


@pytest.mark.parametrize(
    ("antithetic", "utility", "coefficients"),
    [
        (True, [1.0, -0.5, 0.25, -0.75], (1.5 / 4, 1.0 / 4)),
        (True, [0.7, 0.7, -0.7, -0.7], (0.0, 0.0)),
        (False, [1.0, 0.0, -1.0], (1 / 3, 0.0, -1 / 3)),
    ],
)
def test_a_coefficient_is_the_mean_of_what_the_members_of_a_direction_are_worth(
    antithetic, utility, coefficients
):
    strategy = nes(population=len(utility), antithetic=antithetic)
    assert strategy.tell(strategy.ask(0), np.array(utility)).coefficients == coefficients


def test_as_many_utilities_as_members_are_needed():
    strategy = nes(population=4)
    with pytest.raises(ValueError, match="shorter"):
        strategy.tell(strategy.ask(0), np.zeros(3))


FALLING = {"kind": "plateau", "start": 0.4, "factor": 0.5, "patience": 2}


def test_the_state_has_the_mean_fitness_of_members_that_have_one_where_sigma_needs_it():
    utility, fitness = np.zeros(4), np.array([1.0, np.nan, 2.0, np.nan])
    adaptive, constant = nes(population=4, sigma=FALLING), nes(population=4)
    missing = np.full(4, np.nan)
    assert adaptive.tell(adaptive.ask(0), utility, fitness).strategy_state == {"fitness": 1.5}
    assert adaptive.tell(adaptive.ask(1), utility, missing).strategy_state == {}
    assert constant.tell(constant.ask(0), utility, fitness).strategy_state == {}


def directions(population: Population) -> list[tuple[int, int, int]]:
    return [
        (one.run_seed, one.generation, one.direction) for one in population.seed_perturbations()
    ]


def test_mistake_5_no_perturbation_of_a_long_run_is_drawn_twice():
    """Members have an index, not one of a million random seeds, of which some would collide."""
    strategy = nes(generations=1000, population=30, antithetic=False)
    names = [name for generation in range(1000) for name in directions(strategy.ask(generation))]
    assert len(set(names)) == len(names) == 30_000


def first_noise(run_seed: int, generation: int = 0) -> bytes:
    member = nes(run_seed).ask(generation).seed_perturbations()[0]
    return noise.weight_noise(
        member.run_seed, member.generation, member.direction, "x", 64
    ).tobytes()


def test_mistake_6_neighboring_run_seeds_share_no_population():
    """`default_rng(seed + generation)` gives generation 1 of run 0 to generation 0 of run 1."""
    drawn = {first_noise(seed, generation) for seed in range(5) for generation in range(10)}
    assert len(drawn) == 50
