"""Optimizers that move theta along an estimated gradient: SGD with momentum, Adam, weight decay.

All steps are gradient ascent, in fp32, in place on the master weights. `fp32_arithmetic` describes
why every machine computes the same bits.
"""

from germline.optimizers.adam import Adam
from germline.optimizers.base import AscentOptimizer, make_optimizer
from germline.optimizers.sgd import Sgd

__all__ = ["Adam", "AscentOptimizer", "Sgd", "make_optimizer"]
