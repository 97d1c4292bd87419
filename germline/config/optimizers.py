"""Settings of optimizers, which apply an estimated gradient to theta."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.registry import register


class OptimizerBase(KindSection):
    """Settings that every optimizer has."""

    weight_decay: float = Field(0.0, ge=0)
    """Weight decay: each generation, theta moves towards `decay_to` by this number times the
    learning rate times the distance."""
    decay_to: Literal["zero", "start"] = "zero"
    """Target of weight decay: zero, or the starting weights, which takes a copy of them."""


@register("optimizer", "germline.optimizers.sgd:Sgd")
class Sgd(OptimizerBase):
    """SGD; with momentum, its state takes 4 bytes per searched number."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    """Share of the last step that is added to the next one; along a constant gradient, steps
    grow to 1 / (1 - momentum) times their size."""


@register("optimizer", "germline.optimizers.adam:Adam")
class Adam(OptimizerBase):
    """Adam; its moments take 8 bytes per searched number."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""


OptimizerConfig = Annotated[OptimizerBase, KindOf("optimizer", default="sgd")]
