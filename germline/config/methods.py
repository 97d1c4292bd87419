"""Settings of methods: how a run uses the rollouts of perturbed members."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.config.schedules import (
    LARGEST_SIGMA,
    Adaptive,
)
from germline.registry import register


class MethodSection(KindSection):
    """Base of the methods, with the properties that other packages use.

    Attributes:
        trains_center: whether theta changes; if not, members answer by vote.
        replayable: whether seeds and coefficients rebuild every generation; if not, only snapshots
            do.
        smoke_overrides: settings of the method in a run of `--smoke`.
    """

    trains_center: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    smoke_overrides: ClassVar[tuple[str, ...]] = ()

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigmas of members, given `strategy.sigma`; none if they equal the center."""
        return (sigma,)

    def title(self, strategy: str) -> str:
        """Name the method in the title of a run, given the kind of the strategy."""
        return self.kind


@register("method", "germline.baselines.method:EvolutionStrategyMethod")
class EvolutionStrategy(MethodSection):
    """Evolution strategy: the members, utilities and updates of `strategy`."""

    kind: Literal["es"] = "es"

    def title(self, strategy: str) -> str:
        """Name the strategy."""
        return strategy


@register("method", "germline.baselines.randopt:RandOptMethod")
class RandOpt(MethodSection):
    """RandOpt: keep the best of many random members and let them vote; theta never changes."""

    kind: Literal["randopt"] = "randopt"
    trains_center = False
    smoke_overrides = ("method.ensemble_size=2",)
    ensemble_size: int = Field(
        8, ge=1, description="Number of members that vote: those of the largest fitness."
    )
    sigmas: tuple[Annotated[float, Field(gt=0, le=LARGEST_SIGMA)], ...] | None = Field(
        None,
        min_length=1,
        description=(
            "Sigmas that the directions use in turn, in `strategy.sigma_unit`; default: "
            "`strategy.sigma` for all."
        ),
    )

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigmas of the list, or that of the strategy."""
        return self.sigmas or (sigma,)


@register("method", "germline.baselines.es_sample_gd:EsSampleGradientDescentMethod")
class EsSampleGradientDescent(MethodSection):
    """Sample with ES, optimize with gradients: backpropagation on completions of the members."""

    kind: Literal["es_sample_gd"] = "es_sample_gd"
    replayable = False
    exploration: Literal["weights", "temperature"] = Field(
        "weights",
        description=(
            "Source of completions: `weights`, members perturbed by `strategy`; `temperature`, the "
            "center, as often as there are members, by sampling at `task.temperature`."
        ),
    )
    advantage: Literal["example", "member"] = Field(
        "example",
        description=(
            "What `shaping` compares: `example`, the members' rewards on each example; `member`, "
            "their fitness, as in ES."
        ),
    )
    clip: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=(
            "Weight tokens by the ratio of their probabilities under the center and under the "
            "member that generated them, clipped to 1 ± clip; default: no weights."
        ),
    )
    rows: int = Field(
        32,
        ge=1,
        description=(
            "Completions per backward pass; fewer need less memory. Another number may change the "
            "last bits of the gradient."
        ),
    )

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return no sigma if the center itself samples the completions."""
        return () if self.exploration == "temperature" else (sigma,)


MethodConfig = Annotated[
    EvolutionStrategy | RandOpt | EsSampleGradientDescent, KindOf("method", default="es")
]
