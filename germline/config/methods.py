"""Settings of methods: what is made of the rollouts of perturbed members."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.sections import Section, named
from germline.config.shaping import ShapingConfig, ZScore
from germline.config.strategies import Nes, StrategyConfig


class Es(Section):
    """Evolution strategy: ask, play, tell, apply, as `strategy` says."""

    kind: Literal["es"] = "es"


class RandOpt(Section):
    """RandOpt: keep the best of many random members and let them vote; theta never moves."""

    kind: Literal["randopt"] = "randopt"
    keep: int = Field(8, ge=1, description="Members that are kept, the fittest, to vote.")
    sigmas: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None,
        min_length=1,
        description=(
            "Sigmas the directions have in turn, in `strategy.sigma_unit`; default: "
            "`strategy.sigma` for all."
        ),
    )


MethodConfig = Annotated[Annotated[Es | RandOpt, Field(discriminator="kind")], named("es")]

SAMPLES = ("kind", "population", "antithetic", "sigma", "sigma_unit")
"""Settings of nes that say which members play; the others say what is learnt from them."""


def refuse_unfit(
    method: MethodConfig, strategy: StrategyConfig, shaping: ShapingConfig, generations: int
) -> None:
    """Refuse what a method cannot use, as nothing that is set may be ignored.

    Raises:
        ValueError: a setting is of no use to the method, or more members are kept than play.
    """
    if not isinstance(method, RandOpt):
        return
    nes = _seeded(method.kind, strategy)
    why = f"by method.kind={method.kind}, as its members vote and theta never moves: drop it"
    for name, field in Nes.model_fields.items():
        if name not in SAMPLES and getattr(nes, name) != field.get_default():
            raise ValueError(f"strategy.{name} would be ignored {why}")
    if shaping != ZScore():
        raise ValueError(f"shaping.kind={shaping.kind} would be ignored {why}")
    if not isinstance(nes.sigma, float):
        raise ValueError(
            f"strategy.sigma.kind={nes.sigma.kind} cannot be used by method.kind={method.kind}: "
            "give a number, or method.sigmas=[...] for several"
        )
    if method.sigmas is not None and nes.sigma != Nes.model_fields["sigma"].default:
        raise ValueError(
            f"strategy.sigma={nes.sigma:g} would be ignored beside method.sigmas="
            f"{list(method.sigmas)}: drop one of them"
        )
    if method.keep > nes.population * generations:
        raise ValueError(
            f"method.keep={method.keep} is more than the {nes.population * generations} members of "
            "strategy.population times generations: keep fewer or play more"
        )


def _seeded(kind: str, strategy: StrategyConfig) -> Nes:
    if not isinstance(strategy, Nes):
        raise ValueError(
            f"strategy.kind={strategy.kind} cannot be used by method.kind={kind}, whose members "
            "are seeds: use strategy.kind=nes"
        )
    return strategy
