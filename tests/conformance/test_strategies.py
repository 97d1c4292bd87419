"""What every strategy must do, whichever it is: the shipped tests over the table of strategies."""

from typing import Any

import numpy as np
import pytest

from germline import noise
from germline.config import Config, load_config
from germline.strategies import make_strategy
from germline.testing import StrategyConformance, noisy_steps, rosenbrock, rotated_ellipsoid, sphere

RAW = {"antithetic": False, "learning_rate": 0.2}
SETTINGS: dict[str, dict[str, Any]] = {
    "nes": {},
    "nes with plateaus": {
        "sigma": {"kind": "plateau", "start": 0.5, "patience": 1},
        "zero_signal": "grow",
    },
    "nes by success": {"sigma": {"kind": "success", "start": 0.5}},
    "nes with a sigma per tensor": {"sigma": {"kind": "natural", "start": 0.1}},
    "nes with a running baseline": {**RAW, "baseline": "running"},
    "nes with cosines": {
        "sigma": {"kind": "cosine", "start": 0.3, "end": 0.05},
        "learning_rate": {"kind": "cosine", "start": 0.4, "end": 0.1, "warmup": 2},
    },
    "cma": {"kind": "cma", "sigma": 0.5},
    "sep_cma": {"kind": "sep_cma", "sigma": 0.5},
}
"""What is tested of each strategy, beside a population of 16."""

LEAVES = {
    "sphere": (sphere(), 0.05),
    "rotated ellipsoid": (rotated_ellipsoid(condition=1e4), 0.05),
    "rosenbrock": (rosenbrock(), 0.02),
    "noisy steps": (noisy_steps(), 0.5),
}
"""What `nes` must climb; strategies that learn the shape of a valley go further along it."""

STEEPER = {
    "rotated ellipsoid": (rotated_ellipsoid(condition=1e4), 1e-3),
    "rosenbrock": (rosenbrock(), 2e-3),
    "noisy steps": (noisy_steps(), 0.5),
}


def resolved(section: dict[str, Any]) -> Config:
    kind = section.get("kind", "nes")
    usual = {"sigma": 0.1, "learning_rate": 0.3} if kind == "nes" else {}
    shaping = "raw" if "baseline" in section else "z_score"
    return load_config(
        {"space": "full", "shaping": shaping, "strategy": {"population": 16, **usual, **section}}
    )


class TestStrategies(StrategyConformance):
    @pytest.fixture(autouse=True, params=SETTINGS)
    def _settings(self, request):
        self.config = resolved(SETTINGS[request.param])
        self.shaping = self.config.shaping
        self.leaves = {"sphere": (sphere(), 0.05)}
        if request.param == "nes":
            self.leaves = LEAVES
        elif self.config.strategy.kind == "cma":
            self.leaves = {**LEAVES, **STEEPER}

    def make(self, run_seed, generations, dimension):
        return make_strategy(
            self.config.strategy, run_seed=run_seed, generations=generations, dimension=dimension
        )


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
