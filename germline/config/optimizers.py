"""Settings of optimizers: what an estimated gradient becomes."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.registry import register


class OptimizerBase(KindSection):
    """Settings that every optimizer has."""

    weight_decay: float = Field(
        0.0,
        ge=0,
        description=(
            "Weight decay: times the learning rate, the share of its distance to `decay_to` that "
            "theta loses per generation."
        ),
    )
    decay_to: Literal["zero", "start"] = Field(
        "zero",
        description=(
            "Target of weight decay: zero, or the starting weights, of which a copy is kept."
        ),
    )


@register("optimizer", "germline.optimizers.sgd:Sgd")
class Sgd(OptimizerBase):
    """Plain ascent along the estimated gradient; with momentum, 4 bytes per searched number."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "Share of the last step added to the next; steady gradients go 1 / (1 - momentum) "
            "times as far."
        ),
    )


@register("optimizer", "germline.optimizers.adam:Adam")
class Adam(OptimizerBase):
    """Adam; its moments cost 8 bytes per searched number."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")


OptimizerConfig = Annotated[OptimizerBase, KindOf("optimizer", default="sgd")]
