"""The protocols of strategies: what every one does, and what some of them do besides."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from germline.signal_types import SignalPower
from germline.types import (
    Evaluation,
    Example,
    MeanUpdate,
    Perturbation,
    Population,
    Update,
)


@runtime_checkable
class Strategy(Protocol):
    """Proposes the members of a generation and computes its update, without tensors.

    `ask` depends on run seed and generation, and in a strategy that adapts on the earlier updates.
    """

    def ask(self, generation: int) -> Population:
        """Return the members of a generation."""

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update | MeanUpdate:
        """Turn utilities into the coefficients of the next step of theta, or into the step itself.

        Args:
            population: what `ask` returned.
            utilities: shaped fitness, one per member; 0 where the rewards are missing.
            fitness: of the members; NaN: missing.
            center: fitness of the center, where `population.evaluate_center` requests it.
            power: signal and noise of the generation; None where noise cannot be measured.
        """

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore the state after the updates of a stopped run, from generation 0 on.

        Returns:
            The updates, with the offsets that a journal leaves out of a `MeanUpdate`.
        """


@runtime_checkable
class CalibratedStrategy(Protocol):
    """A strategy that finds its sigma by trials: the loop calls `calibrate` before each `ask`."""

    def calibrate(
        self, generation: int, divergence: Callable[[Sequence[Perturbation]], float]
    ) -> None:
        """Choose a generation's sigma by the KL divergence of members, in nats per token or NaN."""


@runtime_checkable
class ConstrainedStrategy(Protocol):
    """A strategy that weighs rubric parts by weights of its own, which change over a run."""

    def weigh(
        self,
        population: Population,
        batch: Sequence[Example],
        evaluation: Evaluation,
        of_center: Evaluation | None,
    ) -> tuple[Evaluation, Evaluation | None]:
        """Return the evaluations of members and center with the rewards of the generation.

        The loop calls it before `tell`.
        """


@runtime_checkable
class ReportingStrategy(Protocol):
    """A strategy with values of its own to record in generations.jsonl."""

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return JSON values by name, which a row of the update's generation will have."""
