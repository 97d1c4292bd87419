"""How a sweep searches, and the limits of all its trials together."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from germline.config.base import Section
from germline.config.run_config import Budget

RACE_SHARE = 0.3
"""Share of the budget for more run seeds of the best trials."""

Sampler = Literal["tpe", "random", "grid", "cmaes", "gp"]


class SweepBudget(Budget):
    """Limits of all trials together."""

    trials: int | None = Field(None, ge=1)
    """Number of trials."""


class SweepOptions(Section):
    """How a sweep searches: `sweep.sampler=grid` on the command line."""

    budget: SweepBudget = SweepBudget()
    """Limits of all trials together: the settings of `budget`, and `trials`."""
    sampler: Sampler = "tpe"
    """What proposes trials."""
    objectives: tuple[Literal["score", "peak_memory", "tokens"], ...] = ("score",)
    """What is optimized; of several, the Pareto front."""
    seeds: int = Field(4, ge=1)
    """Largest number of run seeds of a trial; the first one is `seed` of the config."""
    test_seeds: int = Field(2, ge=0)
    """Further run seeds, with which the best trials are trained again."""
    random: bool = True
    """Whether half of the budget is spent on random search, to compare with."""
    storage: str | None = None
    """URL of Optuna's storage; default: `study.db` in the folder."""

    @field_validator("objectives", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Any:
        if not self.budget.limits and not self.is_grid:
            raise ValueError("give a budget of all trials, such as --budget rollouts=40000")
        if self.sampler == "cmaes" and len(self.objectives) > 1:
            raise ValueError("sweep.sampler=cmaes has one objective: use tpe or gp")
        return self

    @property
    def samplers(self) -> list[str]:
        """The sampler, and random search where it is beside it."""
        is_alone = not self.random or self.sampler in ("random", "grid")
        return [self.sampler] if is_alone else [self.sampler, "random"]

    @property
    def is_grid(self) -> bool:
        """Whether every trial is trained to its end with all run seeds, to map the space."""
        return self.sampler == "grid"

    @property
    def search_share(self) -> float:
        """The share of the budget that is spent before the race."""
        return 1 - RACE_SHARE if self.seeds > 1 else 1.0

    @property
    def searched(self) -> dict[str, float]:
        """The limits before the race."""
        limits, share = self.budget.limits.items(), self.search_share
        return {name: limit * (1 if name == "trials" else share) for name, limit in limits}
