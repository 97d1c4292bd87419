"""Settings of strategies and their optimizers: where to look next, and how far to go."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from germline.config.schedules import Linear, Scheduled
from germline.config.sections import Section, named


class Sgd(Section):
    """Plain ascent along the estimated gradient."""

    kind: Literal["sgd"] = "sgd"


class Adam(Section):
    """Adam; its moments cost 8 bytes per searched number."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")


OptimizerConfig = Annotated[Annotated[Sgd | Adam, Field(discriminator="kind")], named("sgd")]


class Nes(Section):
    """Natural evolution strategy with Gaussian noise, the field's default for language models."""

    kind: Literal["nes"] = "nes"
    population: int = Field(32, ge=2, description="Members per generation (N).")
    antithetic: bool = Field(default=True, description="Members come in pairs +noise and -noise.")
    sigma: Scheduled = Field(
        0.005, description="Standard deviation of the perturbation, in `sigma_unit`."
    )
    sigma_unit: Literal["constant", "mean_abs", "std"] = Field(
        "constant",
        description=(
            "Unit of sigma and learning rate per tensor: weight units, mean |W|, or std W of "
            "the starting weights."
        ),
    )
    learning_rate: Scheduled = Field(
        0.01,
        description=(
            "Multiplies sigma times the estimated gradient (Qiu et al.'s alpha), in `sigma_unit`."
        ),
    )
    optimizer: OptimizerConfig = Sgd()

    @model_validator(mode="after")
    def _members_differ_from_the_centre(self) -> "Nes":
        if isinstance(self.sigma, Linear) and min(self.sigma.start, self.sigma.end) == 0:
            raise ValueError(
                f"sigma from {self.sigma.start} to {self.sigma.end} reaches 0, where all members "
                "are the centre and nothing is learnt: end it above 0"
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


StrategyConfig = Annotated[Nes, named("nes")]
