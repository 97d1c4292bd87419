"""Settings of methods: how a run uses the rollouts of perturbed members."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.config.fleets import FleetConfig
from germline.config.schedules import (
    LARGEST_SIGMA,
    Adaptive,
    AutoLearningRate,
    AutoSigma,
    NaturalGradientSigma,
)
from germline.config.spaces import SpaceConfig
from germline.config.strategies import Nes, StrategyConfig
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


@register("method", "germline.baselines.evolution_strategy:EvolutionStrategyMethod")
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

GRADIENTS_OF = ("full", "low_rank")
"""Spaces whose tensors belong to the model, which backpropagation reaches."""


def check_method(method: MethodConfig, strategy: StrategyConfig, generations: int) -> None:
    """Refuse a strategy that the method cannot use.

    Raises:
        ValueError: members are not seeds, sigma or learning rate has a kind that the method cannot
            follow, or the ensemble is larger than the number of members.
    """
    if isinstance(method, EvolutionStrategy):
        return
    if not isinstance(strategy, Nes):
        raise ValueError(
            f"strategy.kind={strategy.kind} cannot be used by method.kind={method.kind}, whose "
            "members are seeds: use strategy.kind=nes"
        )
    if isinstance(method, RandOpt):
        _check_voting(method, strategy, generations)
    else:
        _check_gradient(method, strategy)


def _check_voting(method: RandOpt, nes: Nes, generations: int) -> None:
    if not isinstance(nes.sigma, float | AutoSigma):
        raise ValueError(
            f"strategy.sigma.kind={nes.sigma.kind} cannot be used by method.kind={method.kind}: "
            "give a number or auto, or method.sigmas=[...] for several"
        )
    if method.ensemble_size > nes.population * generations:
        raise ValueError(
            f"method.ensemble_size={method.ensemble_size} is more than the "
            f"{nes.population * generations} members of strategy.population times generations: "
            "keep fewer or evaluate more"
        )


def _check_gradient(method: EsSampleGradientDescent, nes: Nes) -> None:
    why = f"by method.kind={method.kind}"
    if isinstance(nes.sigma, NaturalGradientSigma):
        raise ValueError(
            f"strategy.sigma.kind=natural cannot be used {why}, whose gradient does not contain "
            "sigma: give a number or another schedule"
        )
    if isinstance(nes.learning_rate, AutoLearningRate):
        raise ValueError(
            f"strategy.learning_rate=auto cannot be used {why}, which follows a gradient and not "
            "the differences between members: give a number, such as 0.0005"
        )


def check_backpropagation(
    method: MethodConfig, space: SpaceConfig, engine: str, fleet: FleetConfig, temperature: float
) -> None:
    """Refuse to backpropagate without gradients, and to explore by sampling at temperature 0.

    Args:
        method: any; others than `es_sample_gd` need no gradient.
        space: what is searched.
        engine: kind of the engine.
        fleet: number and place of the engines.
        temperature: of sampling.

    Raises:
        ValueError: there is nothing to backpropagate through, or all samples would be the same.
    """
    if not isinstance(method, EsSampleGradientDescent):
        return
    refusal = f"cannot be used by method.kind={method.kind}"
    if space.kind not in GRADIENTS_OF:
        raise ValueError(
            f"space.kind={space.kind} {refusal}, whose gradient moves whole tensors of the "
            f"model: use space.kind={' or '.join(GRADIENTS_OF)}"
        )
    if engine != "inprocess":
        raise ValueError(f"engine.kind={engine} {refusal}, as it has no gradients: use inprocess")
    if fleet.kind != "local":
        raise ValueError(f"fleet.kind={fleet.kind} {refusal}, which runs one model here: use local")
    if fleet.engines > 1:
        raise ValueError(f"fleet.engines={fleet.engines} {refusal}, which runs one model: use 1")
    if method.exploration == "temperature" and temperature == 0:
        raise ValueError(
            "task.temperature=0 writes the same completion every time, so method.exploration="
            "temperature has nothing to compare: set task.temperature=1"
        )
