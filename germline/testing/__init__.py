"""Conformance tests for plugins, and small problems to climb: inherit them, say how yours is made.

A class of tests for each room that plugins extend: make one in a file pytest collects, and every
promise of the contract is tested. Nothing here needs pytest to be installed.
"""

from germline.testing.engines import EngineConformance
from germline.testing.problems import (
    Problem,
    noisy_steps,
    rosenbrock,
    rotated_ellipsoid,
    sphere,
)
from germline.testing.spaces import SpaceConformance
from germline.testing.strategies import StrategyConformance
from germline.testing.tasks import TaskConformance
from germline.testing.vectors import VectorFleet

__all__ = [
    "EngineConformance",
    "Problem",
    "SpaceConformance",
    "StrategyConformance",
    "TaskConformance",
    "VectorFleet",
    "noisy_steps",
    "rosenbrock",
    "rotated_ellipsoid",
    "sphere",
]
