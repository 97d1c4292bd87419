"""Settings of shaping: how the rewards of a generation become the utilities of its members."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.registry import register


class ShapingBase(KindSection):
    """Settings that every shaping has."""

    elite: float = Field(1.0, gt=0, le=1)
    """Share of the fittest members that keep their utility; all others get the mean of their
    utilities. 1: all members keep theirs."""


@register("shaping", "germline.shaping:z_score")
class ZScore(ShapingBase):
    """Fitness in standard deviations from the mean."""

    kind: Literal["z_score"] = "z_score"
    clip: float | None = Field(None, gt=0)
    """Largest absolute z-score, in standard deviations; larger ones are clipped. Default: no
    clipping."""


@register("shaping", "germline.shaping:centered_ranks")
class CenteredRanks(ShapingBase):
    """Ranks from -0.5 (worst) to 0.5 (best); distances between rewards have no effect."""

    kind: Literal["centered_ranks"] = "centered_ranks"


@register("shaping", "germline.shaping:log_rank")
class LogRank(ShapingBase):
    """Utilities that fall with the logarithm of the rank; the worse half has equal utilities."""

    kind: Literal["log_rank"] = "log_rank"


@register("shaping", "germline.shaping:mean_centered")
class Raw(ShapingBase):
    """Fitness minus its mean, in the unit of the reward; the learning rate depends on that unit."""

    kind: Literal["raw"] = "raw"


@register("shaping", "germline.shaping:mean_centered")
class PerExample(ShapingBase):
    """Rewards compared with those of all members on the same example.

    Utilities are means over the batch, smaller than z-scores: the learning rate can be higher.
    """

    kind: Literal["per_example"] = "per_example"
    scale: Literal["none", "std"] = "none"
    """`none`: reward minus the mean of all members on the example; `std`: also divided by their
    standard deviation, so that all examples have equal weight."""


ShapingConfig = Annotated[ShapingBase, KindOf("shaping", default="z_score")]
