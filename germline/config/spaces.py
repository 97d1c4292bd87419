"""Settings of spaces: which numbers are searched."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from germline.config.sections import Many, Section, named


def _one_layer(value: object) -> object:
    """YAML reads `layers: 3` as a number; people mean layer 3."""
    return str(value) if type(value) is int else value


class SpaceBase(Section):
    """Which tensors are searched."""

    include: Annotated[tuple[str, ...], Many] = Field(
        ("*",), description="Glob patterns of canonical tensor names to search."
    )
    exclude: Annotated[tuple[str, ...], Many] = Field(
        (), description="Glob patterns of tensor names to leave alone."
    )
    layers: Annotated[str | None, BeforeValidator(_one_layer)] = Field(
        None,
        description=(
            "Decoder layers to search, such as `0-9` or `0,3,20-23`; tensors outside layers "
            "are then left alone."
        ),
    )


class Full(SpaceBase):
    """Every weight, dense noise; tied tensors once."""

    kind: Literal["full"] = "full"


class LowRank(SpaceBase):
    """EGGROLL: noise A B^T / sqrt(rank) on the linear layers of the decoder blocks."""

    kind: Literal["low_rank"] = "low_rank"
    rank: int = Field(1, ge=1, description="Rank of a member's perturbation.")


SpaceConfig = Annotated[Annotated[Full | LowRank, Field(discriminator="kind")], named("low_rank")]
