"""Settings of methods: what is made of the rollouts of perturbed members."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.config.fleets import FleetConfig
from germline.config.schedules import (
    LARGEST_SIGMA,
    AutoLearningRate,
    AutoSigma,
    NaturalGradientSigma,
)
from germline.config.shaping import ShapingConfig, ZScore
from germline.config.spaces import LowRank, SpaceConfig
from germline.config.strategies import GrowSigmaOnZeroSignal, Nes, StrategyConfig
from germline.registry import register


@register("method")
class EvolutionStrategy(KindSection):
    """Evolution strategy: ask, play, tell, apply, as `strategy` says."""

    kind: Literal["es"] = "es"


@register("method")
class RandOpt(KindSection):
    """RandOpt: keep the best of many random members and let them vote; theta never moves."""

    kind: Literal["randopt"] = "randopt"
    ensemble_size: int = Field(
        8, ge=1, description="Number of members that vote: those of the largest fitness."
    )
    sigmas: tuple[Annotated[float, Field(gt=0, le=LARGEST_SIGMA)], ...] | None = Field(
        None,
        min_length=1,
        description=(
            "Sigmas the directions have in turn, in `strategy.sigma_unit`; default: "
            "`strategy.sigma` for all."
        ),
    )


@register("method")
class EsSampleGradientDescent(KindSection):
    """Sample with ES, optimize with gradients: backpropagation on what perturbed members wrote."""

    kind: Literal["es_sample_gd"] = "es_sample_gd"
    exploration: Literal["weights", "temperature"] = Field(
        "weights",
        description=(
            "Who writes: `weights`, perturbed members, as `strategy` says; `temperature`, the "
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
            "Weigh tokens by how much likelier they are under the center than under their writer, "
            "within 1 ± clip; default: not at all."
        ),
    )
    rows: int = Field(
        32,
        ge=1,
        description=(
            "Completions per backward pass: fewer need less memory. Another number may change the "
            "last bits."
        ),
    )


MethodConfig = Annotated[
    EvolutionStrategy | RandOpt | EsSampleGradientDescent, KindOf("method", default="es")
]

GRADIENTS_OF = ("full", "low_rank")
"""Spaces whose tensors belong to the model, which backpropagation reaches."""

SAMPLES = ("kind", "population", "antithetic", "sigma", "sigma_unit")
"""Settings of nes that say which members play; the others say what is learned from them."""


def check_method(
    method: MethodConfig, strategy: StrategyConfig, shaping: ShapingConfig, generations: int
) -> None:
    """Refuse what a method cannot use, as nothing that is set may be ignored.

    Raises:
        ValueError: a setting is of no use to the method, or more members are kept than play.
    """
    if isinstance(method, EvolutionStrategy):
        return
    if not isinstance(strategy, Nes):
        raise ValueError(
            f"strategy.kind={strategy.kind} cannot be used by method.kind={method.kind}, whose "
            "members are seeds: use strategy.kind=nes"
        )
    if isinstance(method, RandOpt):
        _check_unvoted(method, strategy, shaping, generations)
    else:
        _check_unfollowed(method, strategy)


def _check_unvoted(method: RandOpt, nes: Nes, shaping: ShapingConfig, generations: int) -> None:
    why = f"by method.kind={method.kind}, as its members vote and theta never moves: drop it"
    for name in nes.changed():
        if name not in SAMPLES:
            raise ValueError(f"strategy.{name} would be ignored {why}{_or_default(name)}")
    if shaping != ZScore():
        raise ValueError(f"shaping.kind={shaping.kind} would be ignored {why}")
    if not isinstance(nes.sigma, float | AutoSigma):
        raise ValueError(
            f"strategy.sigma.kind={nes.sigma.kind} cannot be used by method.kind={method.kind}: "
            "give a number or auto, or method.sigmas=[...] for several"
        )
    if method.sigmas is not None and "sigma" in nes.changed():
        sigma = nes.sigma if isinstance(nes.sigma, float) else nes.sigma.kind
        raise ValueError(
            f"strategy.sigma={sigma} would be ignored beside method.sigmas="
            f"{list(method.sigmas)}: drop one of them"
        )
    if method.ensemble_size > nes.population * generations:
        raise ValueError(
            f"method.ensemble_size={method.ensemble_size} is more than the "
            f"{nes.population * generations} members of strategy.population times generations: "
            "keep fewer or evaluate more"
        )


def _check_unfollowed(method: EsSampleGradientDescent, nes: Nes) -> None:
    why = f"by method.kind={method.kind}"
    if isinstance(nes.sigma, NaturalGradientSigma):
        raise ValueError(
            f"strategy.sigma.kind=natural cannot be used {why}, whose gradient says nothing about "
            "sigma: give a number or another schedule"
        )
    if isinstance(nes.learning_rate, AutoLearningRate):
        raise ValueError(
            f"strategy.learning_rate=auto cannot be used {why}, which follows a gradient and not "
            "the differences between members: give a number, such as 0.0005"
        )
    if "baseline" in nes.changed():
        raise ValueError(
            f"strategy.baseline.kind={nes.baseline.kind} would be ignored {why}, which compares "
            "completions with each other: drop it"
        )
    if method.exploration == "weights":
        return
    for name in ("zero_signal", "noise_reuse", "sigma"):
        skips = name == "zero_signal" and not isinstance(nes.zero_signal, GrowSigmaOnZeroSignal)
        if name in nes.changed() and not skips:
            raise ValueError(
                f"strategy.{name} would be ignored {why} with method.exploration=temperature, "
                f"where no member is perturbed: drop it{_or_default(name)}"
            )
    if method.clip is not None:
        raise ValueError(
            f"method.clip={method.clip:g} would do nothing with method.exploration=temperature, "
            "where the center itself wrote the completions that it learns from: drop it"
        )


def _or_default(name: str) -> str:
    """Name the default of a setting, for those whose config file sets it."""
    default = Nes.model_fields[name].get_default()
    default = getattr(default, "kind", default)  # a section by its short name
    plain = isinstance(default, bool | int | float | str)
    return f", or set it to its default, {default}" if plain else ""


def check_backpropagation(
    method: MethodConfig, space: SpaceConfig, engine: str, fleet: FleetConfig, heat: float
) -> None:
    """Refuse to backpropagate where there are no gradients, and to sample where there is no luck.

    Args:
        method: any; others than `es_sample_gd` need no gradient.
        space: what is moved.
        engine: its kind.
        fleet: how many, and where.
        heat: the sampling temperature.

    Raises:
        ValueError: there is nothing to backpropagate through, or all samples would be the same.
    """
    if not isinstance(method, EsSampleGradientDescent):
        return
    found = f"cannot be used by method.kind={method.kind}"
    if space.kind not in GRADIENTS_OF:
        raise ValueError(
            f"space.kind={space.kind} {found}, whose gradient moves whole tensors of the "
            f"model: use space.kind={' or '.join(GRADIENTS_OF)}"
        )
    if engine != "inprocess":
        raise ValueError(f"engine.kind={engine} {found}, as it has no gradients: use inprocess")
    if fleet.kind != "local":
        raise ValueError(f"fleet.kind={fleet.kind} {found}, which runs one model here: use local")
    if fleet.engines > 1:
        raise ValueError(f"fleet.engines={fleet.engines} {found}, which runs one model: use 1")
    if method.exploration == "temperature" and isinstance(space, LowRank) and space.rank != 1:
        raise ValueError(
            f"space.rank={space.rank} would be ignored with method.exploration=temperature, where "
            "nobody is perturbed: drop it, or set it to its default, 1"
        )
    if method.exploration == "temperature" and heat == 0:
        raise ValueError(
            "task.temperature=0 writes the same completion every time, so method.exploration="
            "temperature has nothing to compare: set task.temperature=1"
        )
