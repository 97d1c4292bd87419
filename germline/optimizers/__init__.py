"""Optimizers that move theta along an estimated gradient: SGD with momentum, Adam, weight decay.

All steps are gradient ascent, in fp32, in place on the master weights. `fp32_arithmetic` describes
why every machine computes the same bits.
"""

from germline import registry
from germline.config import OptimizerConfig
from germline.optimizers.adam import Adam
from germline.optimizers.base import AscentOptimizer
from germline.optimizers.sgd import Sgd
from germline.optimizers.weight_decay import WeightDecay

__all__ = ["Adam", "AscentOptimizer", "Sgd", "WeightDecay", "make_optimizer"]


def make_optimizer(config: OptimizerConfig) -> AscentOptimizer:
    """Construct the optimizer that a config section names, with its weight decay."""
    plain: AscentOptimizer = registry.create("optimizer", config)
    if config.weight_decay == 0:
        return plain
    return WeightDecay(plain, config.weight_decay, to_start=config.decay_to == "start")
