"""Settings of strategies, which propose members and compute updates."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from germline.config.base import KindOf, KindSection
from germline.config.optimizers import OptimizerConfig, Sgd
from germline.config.schedules import (
    Adaptive,
    AutoLearningRate,
    AutoSigma,
    CosineSchedule,
    LinearSchedule,
    Rate,
    check_sigma_overflow,
    first_and_last_value,
)
from germline.registry import register

LOST_IN_FP32 = 2.0**-25
"""Half the relative distance of two neighboring fp32 numbers: smaller changes are rounded away."""


@register("baseline")
class PopulationMeanBaseline(KindSection):
    """Members are compared with each other: the mean of their fitness counts as neutral."""

    kind: Literal["population"] = "population"


@register("baseline")
class RunningMeanBaseline(KindSection):
    """Members are compared with the generations before them, as a population of 1 must be."""

    kind: Literal["running"] = "running"
    decay: float = Field(0.9, ge=0, lt=1)
    """Decay of the running mean of fitness, per generation."""


BaselineConfig = Annotated[
    PopulationMeanBaseline | RunningMeanBaseline, KindOf("baseline", default="running")
]


@register("zero_signal")
class CountZeroSignal(KindSection):
    """A generation without signal is counted, and its update of zero is applied."""

    kind: Literal["count"] = "count"


@register("zero_signal")
class SkipZeroSignal(KindSection):
    """A generation without signal changes nothing: no theta, moments or weight decay."""

    kind: Literal["skip"] = "skip"


@register("zero_signal")
class GrowSigmaOnZeroSignal(KindSection):
    """Sigma grows after each generation without signal, and shrinks back after each with one."""

    kind: Literal["grow"] = "grow"
    factor: float = Field(1.5, gt=1)
    """Multiplies sigma, or divides it on the way back."""
    most: float = Field(10.0, gt=1)
    """Largest factor by which sigma grows."""


ZeroSignalConfig = Annotated[
    CountZeroSignal | SkipZeroSignal | GrowSigmaOnZeroSignal,
    KindOf("zero_signal", default="grow"),
]


Unit = Literal["constant", "mean_abs", "std", "rms"]
"""Unit of sigma and learning rate: 1, mean |W|, std W or root mean square W."""


class StrategyBase(KindSection):
    """Attributes of every strategy; a kind may define each as a setting or a property."""

    if TYPE_CHECKING:  # each kind declares it, with a default and limits of its own
        population: int | None

    @property
    def unit(self) -> Unit:
        """The unit of sigma: `sigma_unit` if the strategy has this setting."""
        unit: Unit | Literal["auto"] = getattr(self, "sigma_unit", "auto")
        return "constant" if unit == "auto" else unit

    @property
    def whole_run(self) -> LinearSchedule | CosineSchedule | None:
        """The schedule over all generations, if any; it depends on their number."""
        return None

    @property
    def has_coordinates(self) -> bool:
        """Whether members are vectors of numbers, and not directions of seeds."""
        return False


@register("strategy", "germline.strategies.nes:NaturalEvolution")
class Nes(StrategyBase):
    """Natural evolution strategy with Gaussian noise, the usual choice for language models."""

    kind: Literal["nes"] = "nes"
    population: int = Field(32, ge=1)
    """Members per generation (N); 1 needs `baseline=running`."""
    antithetic: bool = True
    """Members come in pairs +noise and -noise."""
    sigma: Adaptive = AutoSigma()
    """Standard deviation of the perturbation, in `sigma_unit`; `auto` calibrates it by the KL
    divergence of members."""
    sigma_unit: Literal["auto", "constant", "mean_abs", "std", "rms"] = "auto"
    """Unit of sigma and learning rate per tensor: weight units, mean |W|, std W or root mean
    square W of the starting weights; for an adapter, those of the adapted layer; for
    coordinates, those of the matrices they change. `auto`: `rms` where sigma is `auto`, else
    `constant`."""
    learning_rate: Rate = AutoLearningRate()
    """Multiplies sigma times the estimated gradient (Qiu et al.'s alpha), in `sigma_unit`;
    `auto` follows the measured signal."""
    noise_reuse: int = Field(1, ge=1)
    """Consecutive generations with the same directions, each on its own batch (EGGROLL)."""
    baseline: BaselineConfig = PopulationMeanBaseline()
    """Fitness whose utility is zero."""
    zero_signal: ZeroSignalConfig = CountZeroSignal()
    """What to do when all fitness values of a generation are equal."""
    optimizer: OptimizerConfig = Sgd()

    @property
    def unit(self) -> Unit:
        """The unit of sigma; `sigma_unit=auto` is `rms` if sigma is calibrated."""
        if self.sigma_unit == "auto" and isinstance(self.sigma, AutoSigma):
            return "rms"
        return super().unit

    @property
    def whole_run(self) -> LinearSchedule | CosineSchedule | None:
        """The schedule over all generations, if any; it depends on their number."""
        laid_out = (self.sigma, self.learning_rate)
        return next(
            (one for one in laid_out if isinstance(one, LinearSchedule | CosineSchedule)), None
        )

    @model_validator(mode="after")
    def _members_differ_from_the_center(self) -> "Nes":
        if (values := first_and_last_value(self.sigma)) is None:
            return self
        start, end = values
        if min(start, end) == 0:
            raise ValueError(
                f"sigma from {start} to {end} reaches 0, where all members "
                "are the center and nothing is learned: end it above 0"
            )
        check_sigma_overflow(max(start, end))
        return self

    @model_validator(mode="after")
    def _something_is_learned(self) -> "Nes":
        rates = first_and_last_value(self.learning_rate)
        if rates and max(rates) == 0:
            raise ValueError(
                "learning_rate from 0 to 0 leaves the model as it was: start or end it above 0"
            )
        return self

    @model_validator(mode="after")
    def _decay_can_act(self) -> "Nes":
        if (rates := first_and_last_value(self.learning_rate)) is None:
            return self
        rate, decay = max(rates), self.optimizer.weight_decay
        product = f"weight_decay={decay:g} times learning_rate={rate:g} is {decay * rate:.2g}"
        if decay * rate > 1:
            raise ValueError(
                f"{product}: above 1, theta overshoots {self.optimizer.decay_to} in every "
                f"generation: use weight_decay={1 / rate:g} or less"
            )
        if 0 < decay * rate < LOST_IN_FP32:
            raise ValueError(
                f"{product}: theta would not move, as fp32 rounds such a share of it away: use "
                f"weight_decay={LOST_IN_FP32 / rate:.1g} or more"
            )
        return self

    @model_validator(mode="after")
    def _sigma_is_changed_by_one_rule(self) -> "Nes":
        if isinstance(self.sigma, AutoSigma) and isinstance(
            self.zero_signal, GrowSigmaOnZeroSignal
        ):
            raise ValueError(
                "zero_signal=grow changes sigma, and sigma=auto grows by itself after generations "
                "without a signal: drop zero_signal, or give sigma as a number"
            )
        return self

    @model_validator(mode="after")
    def _members_are_compared_with_something(self) -> "Nes":
        running = isinstance(self.baseline, RunningMeanBaseline)
        if self.population == 1 and not running:
            raise ValueError(
                "population=1 has no other member to compare with: use population=2, or "
                "antithetic=false with baseline=running and shaping=raw"
            )
        return self

    @model_validator(mode="after")
    def _a_measured_step_is_taken_as_it_is(self) -> "Nes":
        if not isinstance(self.learning_rate, AutoLearningRate):
            return self
        cause = "learning_rate=auto chooses the length of every step"
        if not isinstance(self.optimizer, Sgd) or self.optimizer.momentum:
            kind = "adam" if not isinstance(self.optimizer, Sgd) else "momentum"
            raise ValueError(
                f"{cause}, which optimizer {kind} would change: give learning_rate as a number, "
                "such as 0.01, or use optimizer=sgd without momentum"
            )
        if self.population == 1:
            raise ValueError(
                f"{cause} by how members differ, and population=1 has no other member: give "
                "learning_rate as a number, such as 0.001, or use population=2"
            )
        return self

    @model_validator(mode="after")
    def _pairs_are_even(self) -> "Nes":
        if self.antithetic and self.population % 2:
            raise ValueError(
                f"population={self.population} is odd but antithetic pairs need an even one: "
                f"use population={self.population + 1} or antithetic=false"
            )
        return self


StrategyConfig = Annotated[StrategyBase, KindOf("strategy", default="nes")]
