"""What an optimizer must be able to do; `Masters` drives it, tensor by tensor."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class AscentOptimizer(Protocol):
    """Moves masters along gradients; one object per run, with state per tensor."""

    @property
    def bytes_per_number(self) -> int:
        """Size of the state per searched number."""

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:
        """Look at the weights the run starts from, before any step and before any state is loaded.

        A resumed run begins here too: it loads the base model first.
        """

    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
        unit: float = 1.0,
    ) -> None:
        """Move `master` uphill, in place.

        Args:
            name: canonical name of the tensor.
            master: fp32, contiguous.
            gradient: estimated gradient, of the same shape, dtype and device; left as it is.
            learning_rate: positive moves towards higher fitness.
            step_index: 0 for the first step of the run, then one more for each.
            unit: what the learning rate is a multiple of for this tensor.
        """

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state, sorted by key; not copies."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the state by copies of what `state_dict` returned."""
