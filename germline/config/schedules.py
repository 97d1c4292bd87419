"""Settings that may change during a run: a number, a schedule, or a value that adapts."""

from decimal import Context, Decimal
from typing import Annotated, Literal

from pydantic import Field

from germline.config.base import KindSection, NumberOrKindOf, in_order
from germline.registry import register

LARGEST_SIGMA = 1e6
"""Largest sigma: weights are at most about 1, and products of layers overflow above it."""


@register("sigma", "germline.strategies.sigma_rules:ScheduledSigma")
@register("learning_rate")
class LinearSchedule(KindSection):
    """A linear change from `start` in generation 0 to `end` in the last generation."""

    kind: Literal["linear"] = "linear"
    start: float = Field(ge=0)
    """Value in generation 0."""
    end: float = Field(ge=0)
    """Value in the last generation."""


@register("sigma", "germline.strategies.sigma_rules:ScheduledSigma")
@register("learning_rate")
class CosineSchedule(KindSection):
    """Half a cosine over the run, flat at both ends: `start` in generation 0, `end` in the last."""

    kind: Literal["cosine"] = "cosine"
    start: float = Field(ge=0)
    """Value in generation 0, or after the warmup."""
    end: float = Field(ge=0)
    """Value in the last generation."""
    warmup: int = Field(0, ge=0)
    """Generations in which the value first rises linearly to `start`."""


@register("sigma", "germline.strategies.sigma_rules:PlateauSigma")
class PlateauSchedule(KindSection):
    """A constant value that is lowered whenever fitness stops rising."""

    kind: Literal["plateau"] = "plateau"
    start: float = Field(gt=0)
    """Value in generation 0."""
    factor: float = Field(0.5, gt=0, lt=1)
    """Multiplies the value on a plateau."""
    patience: int = Field(5, ge=1)
    """A plateau: consecutive generations whose mean fitness is not above all earlier ones."""
    min: float = Field(1e-6, gt=0)
    """The value never falls below this."""

    _order = in_order("min", "start")


class AdaptiveSigma(KindSection):
    """A sigma that adapts between two limits."""

    start: float = Field(gt=0)
    """Value in generation 0."""
    min: float = Field(1e-6, gt=0)
    """The value never falls below this."""
    max: float = Field(1.0, gt=0, le=LARGEST_SIGMA)
    """The value never rises above this."""

    _order = in_order("min", "start", "max")


@register("sigma", "germline.strategies.sigma_rules:SuccessSigma")
class SuccessRateSigma(AdaptiveSigma):
    """A sigma that grows while many members are fitter than the center, else shrinks (1/5 rule)."""

    kind: Literal["success"] = "success"
    target: float = Field(0.2, gt=0, lt=1)
    """Share of members fitter than the center, which is evaluated too, at which sigma stays."""
    rate: float = Field(0.5, gt=0)
    """After each generation ln sigma grows by this times (share - target)."""


@register("sigma", "germline.strategies.sigma_rules:NaturalSigma")
class NaturalGradientSigma(AdaptiveSigma):
    """A sigma for every tensor, each following the natural gradient (SNES); limits hold for each.

    The learning rate of a tensor is a multiple of its sigma. Every update draws the noise again.
    """

    kind: Literal["natural"] = "natural"
    rate: float = Field(1.0, gt=0)
    """Learning rate of ln sigma (the eta_sigma of Wierstra et al.)."""


@register("sigma", "germline.strategies.calibrated_sigma:CalibratedSigma")
class AutoSigma(KindSection):
    """Sigma calibrated so that members keep a chosen KL divergence from the center.

    Before generation 0, sigma is set so that the mean KL divergence of a few members, on
    completions of the center, is `target_kl`. Until rewards of members differ by more than noise,
    sigma grows.
    """

    kind: Literal["auto"] = "auto"
    target_kl: float = Field(0.002, ge=1e-6, le=1)
    """KL divergence of members from the center, per token, in nats; below the limit are rounding
    errors."""
    max_kl: float | None = Field(None, gt=0, le=1)
    """Largest KL divergence per token, in nats, to which sigma grows without a signal; default:
    0.1, or `target_kl` where that is larger."""
    every: int = Field(0, ge=0)
    """Generations between calibrations; 0 calibrates only at the start."""
    pairs: int | None = Field(None, ge=1)
    """Antithetic pairs that try a sigma, on up to eight completions each; default: 8, and 2 where
    members only score. Fewer take less time, and sigma is less exact."""
    keep: bool = True
    """Take over what a run of the same model, task, space, engine and seed measured on this machine
    (docs/methods.md); the sigma is the same bit for bit. `false`: measure it again."""

    @property
    def tried_pairs(self) -> int:
        """The pairs that try a sigma, where members generate."""
        return self.pairs or 8

    @property
    def most_kl(self) -> float:
        """The divergence to which sigma may grow."""
        return self.max_kl or max(0.1, self.target_kl)

    _order = in_order("target_kl", "max_kl")


@register("learning_rate")
class AutoLearningRate(KindSection):
    """A learning rate from the measured signal: steps are shorter if members differ by chance.

    The root mean square of a step, in sigmas, is `step` times the share of the members'
    differences that is signal, times the root of the number of directions, and at most `max_step`.
    With `method=zo_grpo`, `method.relative_step` takes the place of all these settings.
    """

    kind: Literal["auto"] = "auto"
    step: float = Field(0.125, gt=0)
    """Step in sigmas, for one direction whose differences are all signal."""
    max_step: float = Field(0.3, gt=0)
    """Longest step, in sigmas."""
    least_step: float = Field(0.25, ge=0)
    """Shortest step in generation 0, in sigmas; it falls with the root of the generations."""
    memory: float = Field(0.9, ge=0, lt=1)
    """Decay of the moving average of the measured signal, per generation."""

    _order = in_order("least_step", "max_step")


Scheduled = float | LinearSchedule | CosineSchedule
"""A number, or a schedule over the generations."""

Rate = Annotated[Scheduled | AutoLearningRate, NumberOrKindOf("learning_rate", default="auto")]
"""A number, a schedule over the generations, or a rate that follows the measured signal."""

Adaptive = Annotated[
    Scheduled | AutoSigma | PlateauSchedule | SuccessRateSigma | NaturalGradientSigma,
    NumberOrKindOf("sigma", default="auto"),
]
"""A number, a schedule over the generations, or a sigma that adapts."""

_DIGITS = Context(prec=28)


def scale_within(value: float, log_step: float, least: float, most: float) -> float:
    """Return value * exp(log_step), cut to [least, most], with the same bits on every machine.

    The exponential is a decimal one of 28 digits: those of C libraries differ in the last bit, and
    a replay elsewhere would end at another digest.
    """
    return min(max(value * float(Decimal(log_step).exp(_DIGITS)), least), most)
