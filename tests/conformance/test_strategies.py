"""What every strategy must do, whichever it is: the shipped tests over the table of strategies."""

from typing import Any

import pytest

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
        {
            "space": "full",
            "shaping": shaping,
            "strategy": {"population": 16, **usual, **section},
        }
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
            self.config.strategy,
            run_seed=run_seed,
            generations=generations,
            dimension=dimension,
        )
