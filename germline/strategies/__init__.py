"""Strategies propose members and learn from their fitness: names and numbers, no tensors."""

from germline import registry
from germline.config import StrategyConfig
from germline.protocols import Strategy


def make_strategy(
    config: StrategyConfig, *, run_seed: int, generations: int, dimension: int = 0
) -> Strategy:
    """Construct the strategy that a config section names.

    Args:
        config: which strategy, and its settings.
        run_seed: of the run.
        generations: length of the run, for schedules.
        dimension: number of searched numbers, for strategies of coordinates.
    """
    strategy: Strategy = registry.create(
        "strategy", config, run_seed=run_seed, generations=generations, dimension=dimension
    )
    return strategy
