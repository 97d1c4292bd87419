"""What is searched: each space says which tensors move and how a direction moves them."""

from germline.config import Lora, SpaceConfig, Subspace
from germline.protocols import Space
from germline.registry import resolve

SPACES = {
    "full": "germline.spaces.full:Full",
    "low_rank": "germline.spaces.low_rank:LowRank",
    "lora": "germline.spaces.lora:Lora",
    "subspace": "germline.spaces.subspace:Subspace",
    "singular": "germline.spaces.singular:Singular",
}


def make_space(config: SpaceConfig, run_seed: int = 0) -> Space:
    """Build the space a config section names; what it draws at the start is of the run seed."""
    kind = resolve("spaces", SPACES, config.kind)
    drawn = isinstance(config, Lora | Subspace)
    space: Space = kind(config, run_seed) if drawn else kind(config)
    return space
