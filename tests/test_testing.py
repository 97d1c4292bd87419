"""What is shipped for testing plugins: problems are what they say, broken plugins are caught."""

from dataclasses import replace

import numpy as np
import pytest

from germline import noise
from germline.config import Nes, load_config
from germline.strategies.nes import NaturalEvolution
from germline.testing import StrategyConformance, noisy_steps, rosenbrock, rotated_ellipsoid, sphere
from germline.types import Population

TOP = noise.weight_noise(7, 0, 0, "top", 10).astype(np.float64)


@pytest.mark.parametrize("problem", [sphere(), rotated_ellipsoid(), rosenbrock()])
def test_exact_problems_are_zero_at_the_top_and_below_it_elsewhere(problem):
    points = np.stack([TOP, TOP + 0.1, TOP - 0.1, problem.start])
    top, *others = problem.rewards(points, 0)[:, 0]
    assert top == 0
    assert max(others) < 0


def test_noisy_steps_are_flat_nearby_and_differ_from_generation_to_generation():
    problem = noisy_steps()
    near = problem.rewards(np.stack([problem.start, problem.start + 1e-9]), 3)
    assert near.shape == (2, 16)
    assert np.array_equal(near[0], near[1])
    assert not np.array_equal(near, problem.rewards(np.stack([problem.start] * 2), 4))


# --- broken strategies are caught


class Sound(NaturalEvolution):
    """The strategy nes, as a plugin would bring it."""

    def __init__(self, run_seed, generations):
        section = {"population": 8, "sigma": {"kind": "plateau", "start": 0.1, "patience": 1}}
        config = load_config({"strategy": {**section, "learning_rate": 0.3}}).strategy
        assert isinstance(config, Nes)
        super().__init__(config, run_seed, generations)


class ForgetsItsSeed(Sound):
    def __init__(self, run_seed, generations):
        super().__init__(0, generations)


class Forgets(Sound):
    def recall(self, updates):
        for update in updates:
            self._follow(replace(update, strategy_state={"fitness": 0.0}))


class ClimbsDown(Sound):
    def tell(self, population, utilities, fitness=None, center=None, power=None):
        return super().tell(population, -utilities, fitness, center, power)


class RepeatsItself(Sound):
    def ask(self, generation):
        asked = super().ask(generation)
        return Population(generation, asked.members[:1] * 8, antithetic=True)


def conformance(strategy):
    class Conformance(StrategyConformance):
        def make(self, run_seed, generations, dimension):
            return strategy(run_seed, generations)

    return Conformance()


@pytest.mark.parametrize(
    ("strategy", "test"),
    [
        (ForgetsItsSeed, "test_members_follow_from_the_run_seed_and_the_utilities"),
        (Forgets, "test_recalling_a_journal_and_going_on_equals_never_stopping"),
        (ClimbsDown, "test_it_climbs"),
        (RepeatsItself, "test_the_members_of_a_generation_differ"),
    ],
)
def test_a_broken_strategy_fails_the_test_of_its_promise(strategy, test):
    with pytest.raises(AssertionError):
        getattr(conformance(strategy), test)()


def test_a_sound_strategy_of_a_plugin_passes():
    suite = conformance(Sound)
    tests = [name for name in dir(suite) if name.startswith("test_")]
    assert len(tests) == 8
    for name in tests:
        getattr(suite, name)()
