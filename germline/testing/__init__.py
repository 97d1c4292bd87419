"""Conformance tests for plugins, and small optimization problems for tests of strategies.

There is a class of tests for each kind of plugin: inherit from it in a file that pytest collects,
define how your object is made, and every promise of the contract is tested. This package does not
import pytest.
"""

from germline.testing.engine_conformance import EngineConformance
from germline.testing.space_conformance import SpaceConformance
from germline.testing.strategy_conformance import StrategyConformance
from germline.testing.task_conformance import EnvironmentConformance, TaskConformance
from germline.testing.vector_fleet import (
    ObjectiveFunction,
    VectorFleet,
    noisy_steps,
    rosenbrock,
    rotated_ellipsoid,
    sphere,
)

__all__ = [
    "EngineConformance",
    "EnvironmentConformance",
    "ObjectiveFunction",
    "SpaceConformance",
    "StrategyConformance",
    "TaskConformance",
    "VectorFleet",
    "noisy_steps",
    "rosenbrock",
    "rotated_ellipsoid",
    "sphere",
]
