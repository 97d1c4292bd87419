"""Spaces: which tensors are searched, and how a direction changes each of them."""

from germline import registry
from germline.config import SpaceConfig
from germline.protocols import Space


def make_space(config: SpaceConfig, run_seed: int = 0) -> Space:
    """Construct the space that a config section names.

    Args:
        config: which space, and its settings.
        run_seed: of the run; a space that starts from random numbers draws them by this seed.
    """
    space: Space = registry.create("space", config, run_seed=run_seed)
    return space
