"""An estimated gradient becomes a step of theta: sgd with momentum, adam, and weight decay.

All steps are ascents, fp32 and in place on the masters; `arithmetic` says how the same bits come
out on every machine.
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
