"""Settings of fleets: how many engines move together, and how work is cut for them."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.sections import Section, named


class Cell(Section):
    """Work is cut into cells of fixed size: the same batch shapes, whoever computes them."""

    members: int | None = Field(
        None, ge=1, description="Members per cell; default: as many as `rows` allows."
    )
    rows: int = Field(
        1024, ge=1, description="Rows per cell (members x examples) where `members` is left open."
    )
    examples: int = Field(256, ge=1, description="Examples per cell.")


class Local(Section):
    """One engine in this process."""

    kind: Literal["local"] = "local"


FleetConfig = Annotated[Local, named("local")]
