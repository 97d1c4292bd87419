"""Protocol of optimizers; `engines.master_weights.Masters` calls it per tensor."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class AscentOptimizer(Protocol):
    """Moves master weights along gradients; a run has one optimizer, with state per tensor."""

    @property
    def bytes_per_number(self) -> int:
        """Size of the state per searched number."""

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:
        """Receive the starting weights, before any step and before any state is loaded.

        A resumed run calls this too, with the base model.
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
            gradient: estimated gradient, of the same shape, dtype and device; not changed.
            learning_rate: positive values move towards higher fitness.
            step_index: index of the step in the run, from 0.
            unit: factor of the learning rate for this tensor.
        """

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state, sorted by key; not copies."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the state by copies of what `state_dict` returned, made one by one."""


class StoredState(Mapping[str, torch.Tensor]):
    """Tensors of a snapshot, each read when it is asked for.

    A snapshot is as large as masters and moments, so it is never held in memory.
    """

    def __init__(self, read: Callable[[str], torch.Tensor], names: Collection[str]) -> None:
        self._read = read
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)
