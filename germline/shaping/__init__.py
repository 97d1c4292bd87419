"""Compute the fitness of members from rewards, and utilities from fitness.

`fitness` reduces rewards (members x examples) to one number per member. `utilities` shapes the
fitness values into weights of mean zero for the gradient estimate. All numbers are float64, and
means use exactly rounded sums (`math.fsum`): the order of the examples does not change the fitness,
so equal members tie exactly.

    z_score          distance from the mean in standard deviations, cut at `clip`
    centered_ranks    ranks, from -0.5 to 0.5
    log_rank         utilities that fall with the logarithm of the rank
    raw              fitness minus its mean
    per_example      the same as raw, computed from rewards compared example by example

In every shaping, tied members get the same utility. If all members are equal, every utility is
exactly 0. A member without rewards gets 0, and so does its partner in an antithetic pair.
"""

from germline.shaping.fitness import fitness
from germline.shaping.utilities import utilities

__all__ = ["fitness", "utilities"]
