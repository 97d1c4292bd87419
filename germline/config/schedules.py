"""Settings that may change over a run: a number, or a schedule from one number to another."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from germline.config.sections import Section

LARGEST_SIGMA = 1e6
"""Above it members are no models any more: weights are near 1, and products of layers overflow."""


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


class Adapted(Section):
    """A sigma that finds its own size, between limits."""

    start: float = Field(gt=0, description="Value in generation 0.")
    min: float = Field(1e-6, gt=0, description="The value never falls below this.")
    max: float = Field(1.0, gt=0, le=LARGEST_SIGMA, description="The value never rises above this.")

    @model_validator(mode="after")
    def _starts_between_its_limits(self) -> "Adapted":
        if not self.min <= self.start <= self.max:
            raise ValueError(
                f"start={self.start:g} is not between min={self.min:g} and max={self.max:g}: "
                "move the limit"
            )
        return self


class Success(Adapted):
    """Larger while many members are fitter than the centre, smaller where few are (1/5 rule).

    The centre plays every batch beside the members, which costs as much as one of them.
    """

    kind: Literal["success"] = "success"
    target: float = Field(
        0.2,
        gt=0,
        lt=1,
        description=(
            "Share of members fitter than the centre (ties count half) at which sigma stays."
        ),
    )
    rate: float = Field(
        0.5,
        gt=0,
        description="After each generation ln sigma grows by this times (share - target).",
    )


class Natural(Adapted):
    """A sigma for every tensor, each following the natural gradient (SNES); limits hold for each.

    It also scales the tensor's learning rate, which counts in its sigma. The tensors of a direction
    that was fitter grow in sigma where its noise was larger than usual. Costs drawing the noise
    once more per update.
    """

    kind: Literal["natural"] = "natural"
    rate: float = Field(
        1.0, gt=0, description="Learning rate of ln sigma (the eta_sigma of Wierstra et al.)."
    )


SCHEDULES: dict[str, type[Section]] = {
    "linear": Linear,
    "cosine": Cosine,
    "plateau": Plateau,
    "success": Success,
    "natural": Natural,
}
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
_Success = Annotated[Success, Tag("success")]
_Natural = Annotated[Natural, Tag("natural")]

Scheduled = Annotated[
    _Number | _Linear | _Cosine, Discriminator(_tag), BeforeValidator(_short_name)
]
"""A number, or how it moves with the generation."""

Adaptive = Annotated[
    _Number | _Linear | _Cosine | _Plateau | _Success | _Natural,
    Discriminator(_tag),
    BeforeValidator(_short_name),
]
"""A number, or how it moves with the generation or with the fitness."""


def refuse_overflow(sigma: float) -> None:
    """Refuse a sigma that no weight of a model comes near.

    Raises:
        ValueError: it is above the largest.
    """
    if sigma > LARGEST_SIGMA:
        raise ValueError(
            f"sigma={sigma:g} is above {LARGEST_SIGMA:g}, where every member is broken: use one "
            "near the size of the weights or below, such as 0.005; `germline probe` finds it"
        )


def ends(value: Adaptive) -> tuple[float, float]:
    """Return the first and the last value a setting can have."""
    if isinstance(value, Plateau | Adapted):
        return value.start, value.min
    return (value, value) if isinstance(value, float) else (value.start, value.end)
