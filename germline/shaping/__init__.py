"""Rewards become the fitness of members, and fitness becomes utilities.

`fitness` reduces rewards (members x examples) to one number per member, `utilities` shapes them
into weights of mean zero for the gradient estimate. Everything is float64 and means are taken of
exactly rounded sums (`math.fsum`): the same rewards give the same fitness in whatever order the
examples stand, so equal members tie exactly.

    z_score          distance from the mean in standard deviations, cut at `clip`
    centered_ranks    ranks, from -0.5 to 0.5
    log_rank         utilities that fall with the logarithm of the rank
    raw              fitness minus its mean
    per_example      as raw, of rewards compared example by example

Whatever the shaping: members that tie get the same utility, all members equal get exactly 0, and
a member without rewards gets 0, as does its partner in an antithetic pair.
"""

from germline.shaping.fitness import fitness
from germline.shaping.utilities import utilities

__all__ = ["fitness", "utilities"]
