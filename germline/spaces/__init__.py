"""What is searched: each space says which tensors move and how a direction moves them."""

from germline.config import Full, Lora, LowRank
from germline.protocols import Space
from germline.registry import resolve

SPACES = {
    "full": "germline.spaces.full:Full",
    "low_rank": "germline.spaces.low_rank:LowRank",
    "lora": "germline.spaces.lora:Lora",
}


def make_space(config: Full | LowRank | Lora, run_seed: int = 0) -> Space:
    """Build the space a config section names; an adapter starts from noise of the run seed."""
    kind = resolve("spaces", SPACES, config.kind)
    space: Space = kind(config, run_seed) if isinstance(config, Lora) else kind(config)
    return space
