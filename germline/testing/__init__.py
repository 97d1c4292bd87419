"""Conformance tests for plugins, and small problems to climb: inherit them, say how yours is made.

A class of tests for each room that plugins extend: make one in a file pytest collects, and every
promise of the contract is tested. Nothing here needs pytest to be installed.
"""

from germline.testing.benchmark_functions import (
    ObjectiveFunction,
    noisy_steps,
    rosenbrock,
    rotated_ellipsoid,
    sphere,
)
from germline.testing.engine_conformance import EngineConformance
from germline.testing.space_conformance import SpaceConformance
from germline.testing.strategy_conformance import StrategyConformance
from germline.testing.task_conformance import TaskConformance
from germline.testing.vector_fleet import VectorFleet

__all__ = [
    "EngineConformance",
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
