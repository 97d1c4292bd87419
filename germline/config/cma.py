"""Settings of CMA-ES: strategies that adapt their step size, and the shape of their population."""

from typing import Literal

from pydantic import Field, model_validator

from germline.config.schedules import check_sigma_overflow
from germline.config.strategies import StrategyBase
from germline.registry import register


class CmaBase(StrategyBase):
    """Settings of strategies whose members are vectors of numbers and not seeds of directions."""

    population: int | None = Field(None, ge=4)
    """Members per generation (N); default: 4 + 3 ln d, for d searched numbers."""
    sigma: float = Field(0.02, gt=0)
    """Step size in generation 0, in `sigma_unit`; it adapts from there."""
    sigma_unit: Literal["auto", "constant", "mean_abs", "std", "rms"] = "constant"
    """Unit of sigma per tensor: weight units, mean |W|, std W or root mean square W of the
    starting weights; for an adapter, those of the adapted layer; for coordinates, those of the
    matrices they change. `auto` is `constant`."""
    covariance_rate: float = Field(1.0, ge=0, le=1)
    """Multiplies how fast the covariance learns; lower for noisy rewards, 0 adapts the step
    size alone."""

    @model_validator(mode="after")
    def _members_are_models(self) -> "CmaBase":
        check_sigma_overflow(self.sigma)
        return self

    @property
    def has_coordinates(self) -> bool:
        """Whether members are vectors of numbers: those of CMA-ES are."""
        return True


@register("strategy", "germline.strategies.cma:CovarianceMatrixAdaptation")
class Cma(CmaBase):
    """CMA-ES: learns the covariance of the searched numbers, up to about 2,000 of them."""

    kind: Literal["cma"] = "cma"
    lr_adapt: bool = False
    """Let the strategy learn slower where fitness is noisy or rugged (LRA-CMA-ES), at three
    times the computation."""


@register("strategy", "germline.strategies.cma:SeparableCovarianceAdaptation")
class SepCma(CmaBase):
    """Separable CMA-ES: a variance for every searched number, up to about a million of them."""

    kind: Literal["sep_cma"] = "sep_cma"
