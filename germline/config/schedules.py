"""Settings that may change over a run: a number, or a schedule from one number to another."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.sections import Section


class Linear(Section):
    """A straight line over the run: `start` in generation 0, `end` in the last one."""

    kind: Literal["linear"] = "linear"
    start: float = Field(ge=0, description="Value in generation 0.")
    end: float = Field(ge=0, description="Value in the last generation.")


Scheduled = Annotated[float, Field(gt=0)] | Linear
