"""Settings of spaces: which numbers are searched."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection, Many
from germline.registry import register


class SpaceBase(KindSection):
    """Which tensors are searched."""

    include: Annotated[tuple[str, ...], Many] = ("*",)
    """Glob patterns of canonical tensor names to search."""
    exclude: Annotated[tuple[str, ...], Many] = ()
    """Glob patterns of tensor names to leave alone."""
    layers: str | None = Field(None, coerce_numbers_to_str=True)
    """Decoder layers to search, such as `0-9` or `0,3,20-23`, and no tensors outside layers."""
    has_coordinates: ClassVar[bool] = True
    """Whether a member may be any vector of the searched numbers."""

    @property
    def trains_an_adapter(self) -> bool:
        """Whether what is searched can be written as a PEFT adapter."""
        return getattr(self, "init_adapter", None) is not None


@register("space", "germline.spaces.full:Full")
class Full(SpaceBase):
    """Dense noise on every weight; tied tensors count once."""

    kind: Literal["full"] = "full"


class LinearSpace(SpaceBase):
    """A space on the linear layers of the decoder blocks: one batch evaluates the population."""

    unsupported: Literal["refuse", "skip"] = "refuse"
    """Selected weight matrices that are no linear layers, such as fused experts: `refuse` names
    them, `skip` leaves them unperturbed."""


@register("space", "germline.spaces.low_rank:LowRank")
class LowRank(LinearSpace):
    """EGGROLL: noise A B^T / sqrt(rank) on the linear layers of the decoder blocks."""

    kind: Literal["low_rank"] = "low_rank"
    has_coordinates = False
    rank: int = Field(1, ge=1)
    """Rank of a member's perturbation."""


@register("space", "germline.spaces.lora:Lora")
class Lora(LinearSpace):
    """A LoRA adapter: W + alpha / rank * B A beside frozen linear layers of the decoder blocks."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(1, ge=1)
    """Rows of A, columns of B."""
    alpha: float = Field(2.0, gt=0)
    """The adapter adds alpha / rank * B A to a weight."""
    init_scale_a: float | None = Field(None, ge=0)
    """Standard deviation of the starting A; default: 1 / sqrt(inputs of the layer)."""
    init_scale_b: float = Field(0.01, ge=0)
    """Standard deviation of the starting B; 0, as in PEFT, lets A have no effect at first."""
    freeze_a: bool = False
    """Search B alone; A stays as it started."""
    init_adapter: str | None = None
    """Folder of a PEFT adapter to start from; default: a random one."""

    @property
    def trains_an_adapter(self) -> bool:
        """Whether what is searched can be written as a PEFT adapter: always."""
        return True


@register("space", "germline.spaces.subspace:Subspace")
class Subspace(LinearSpace):
    """Coordinates in a random subspace, fixed by the run seed, of all linear layers together."""

    kind: Literal["subspace"] = "subspace"
    dimension: int = Field(256, ge=1)
    """Number of coordinates; each changes every selected layer along one random A B^T. By default
    not more than there are weights."""


@register("space", "germline.spaces.singular:Singular")
class Singular(LinearSpace):
    """ESSA: offsets of the largest singular values of linear layers, or of a given adapter."""

    kind: Literal["singular"] = "singular"
    top_k: int | None = Field(16, ge=1)
    """Largest singular values searched per matrix; `null`: all. 16 may be more than there are."""
    init_adapter: str | None = None
    """Folder of a PEFT adapter whose factors are searched; default: the layers themselves."""


SpaceConfig = Annotated[SpaceBase, KindOf("space", default="low_rank")]
