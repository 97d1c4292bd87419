"""Settings that may change over a run: a number, or a schedule from one number to another."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from germline.config.sections import Section


class Linear(Section):
    """A straight line over the run: `start` in generation 0, `end` in the last one."""

    kind: Literal["linear"] = "linear"
    start: float = Field(ge=0, description="Value in generation 0.")
    end: float = Field(ge=0, description="Value in the last generation.")


class Cosine(Section):
    """Half a cosine over the run, flat at both ends: from `start` to `end` in the last generation.

    With `warmup`, the run begins with a straight line from near 0 up to `start`.
    """

    kind: Literal["cosine"] = "cosine"
    start: float = Field(ge=0, description="Value in generation 0, or after the warmup.")
    end: float = Field(ge=0, description="Value in the last generation.")
    warmup: int = Field(0, ge=0, description="Generations of rise before `start` is reached.")


class Plateau(Section):
    """As high as it was until fitness stops to rise, then lower."""

    kind: Literal["plateau"] = "plateau"
    start: float = Field(gt=0, description="Value in generation 0.")
    factor: float = Field(0.5, gt=0, lt=1, description="Multiplies the value on a plateau.")
    patience: int = Field(
        5,
        ge=1,
        description=(
            "Generations in a row whose mean fitness is not above all before them: a plateau."
        ),
    )
    min: float = Field(1e-6, gt=0, description="The value never falls below this.")

    @model_validator(mode="after")
    def _there_is_room_to_fall(self) -> "Plateau":
        if self.min >= self.start:
            raise ValueError(
                f"min={self.min:g} is not below start={self.start:g}, so nothing could fall: "
                "lower min"
            )
        return self


SCHEDULES: dict[str, type[Section]] = {"linear": Linear, "cosine": Cosine, "plateau": Plateau}
"""The schedules by name."""


def _tag(value: object) -> str:
    """Tell a number from the kinds of schedules; an open kind is linear."""
    if isinstance(value, Section):
        return str(getattr(value, "kind", ""))
    return str(value.get("kind", "linear")) if isinstance(value, Mapping) else "number"


def _short_name(value: object) -> object:
    return {"kind": value} if isinstance(value, str) and value in SCHEDULES else value


_Number = Annotated[float, Field(gt=0), Tag("number")]
_Linear = Annotated[Linear, Tag("linear")]
_Cosine = Annotated[Cosine, Tag("cosine")]
_Plateau = Annotated[Plateau, Tag("plateau")]

Scheduled = Annotated[
    _Number | _Linear | _Cosine, Discriminator(_tag), BeforeValidator(_short_name)
]
"""A number, or how it moves with the generation."""

Adaptive = Annotated[
    _Number | _Linear | _Cosine | _Plateau, Discriminator(_tag), BeforeValidator(_short_name)
]
"""A number, or how it moves with the generation or with the fitness."""


def ends(value: Adaptive) -> tuple[float, float]:
    """Return the first and the last value a setting can have."""
    if isinstance(value, Plateau):
        return value.start, value.min
    return (value, value) if isinstance(value, float) else (value.start, value.end)
