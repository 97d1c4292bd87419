"""What is searched: each space says which tensors move and how a direction moves them."""

from germline.config import Full, LowRank
from germline.protocols import Space
from germline.registry import resolve

SPACES = {
    "full": "germline.spaces.full:Full",
    "low_rank": "germline.spaces.low_rank:LowRank",
}


def make_space(config: Full | LowRank) -> Space:
    """Build the space a config section names."""
    space: Space = resolve("spaces", SPACES, config.kind)(config)
    return space
