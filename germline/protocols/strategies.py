"""The base class of strategies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from germline.types import MeanUpdate, Perturbation, Population, SignalPower, Update


class Strategy(ABC):
    """Proposes the members of a generation and computes its update, without tensors.

    `ask` depends on run seed and generation, and in a strategy that adapts on the earlier updates.
    """

    @abstractmethod
    def ask(self, generation: int) -> Population:
        """Return the members of a generation."""

    @abstractmethod
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

    @abstractmethod
    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore the state after the updates of a stopped run, from generation 0 on.

        Returns:
            The updates, with the offsets that a journal leaves out of a `MeanUpdate`.
        """

    def calibrate(  # noqa: B027 - most strategies are given their sigma
        self, generation: int, divergence: Callable[[Sequence[Perturbation]], float]
    ) -> None:
        """Choose a generation's sigma by trials; the loop calls this before each `ask`.

        `divergence` measures the KL divergence of members, in nats per token or NaN.
        """

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return JSON values by name, which a row of the update's generation will have."""
        return {}
