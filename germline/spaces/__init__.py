"""Spaces: which tensors are searched, and how a direction changes each of them."""

from germline import registry
from germline.config import SpaceConfig
from germline.spaces.base import BaseSpace


def make_space(config: SpaceConfig, run_seed: int = 0) -> BaseSpace:
    """Construct the space that a config section names; some draw their start by the run seed."""
    space: BaseSpace = registry.create("space", config, run_seed=run_seed)
    return space
