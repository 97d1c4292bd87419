"""Other things to make of the rollouts of perturbed members, writing the same run directory.

A method stands beside a strategy and a fleet: it may wrap either, and the loop does not know.
"""

from dataclasses import dataclass

from germline.baselines.randopt import Ensemble, RandomSearch, VotingFleet
from germline.config import Config, RandOpt
from germline.protocols import Fleet, Strategy, Task


@dataclass(frozen=True)
class Method:
    """What the loop is given.

    Attributes:
        ensemble: the members that vote for the centre, where a method keeps some.
    """

    strategy: Strategy
    fleet: Fleet
    ensemble: Ensemble | None = None


def make_method(config: Config, strategy: Strategy, fleet: Fleet, task: Task) -> Method:
    """Put the method a config names around a strategy and a fleet."""
    if isinstance(config.method, RandOpt):
        ensemble = Ensemble(config.method.keep)
        return Method(
            RandomSearch(config.method, strategy, ensemble),
            VotingFleet(fleet, ensemble, task),
            ensemble,
        )
    return Method(strategy, fleet)
